package kill

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// TestKillAtEveryStepOfTheAuditTrail ends the API replica at each step on the
// way of audit events to the trail: each job has one record of its end, what
// was in the spool has one record too, and the chain is sound.
func TestKillAtEveryStepOfTheAuditTrail(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addWorker("worker", nil, "--pools", "core", "--slots", "4")
	var ids []string
	for _, step := range failpoint.AuditSteps {
		t.Run(step, func(t *testing.T) {
			c.t = t
			ids = append(ids, c.auditStep(step)...)
		})
	}
	c.t = t
	// By now every event that was not acknowledged has come again.
	c.api, c.urls = nil, nil
	c.addAPI("api-last")
	for _, id := range ids {
		c.endRecorded(id)
	}
}

func (c *cluster) endRecorded(id string) {
	c.t.Helper()
	c.recorded(client.AuditQuery{EventType: "job_end", JobID: id, Limit: 1000}, func(e client.AuditEntry) bool { return e.JobID == id })
}

func (c *cluster) auditStep(step string) (ids []string) {
	c.t.Helper()
	name := "api-" + step
	c.api, c.urls = nil, nil
	c.addAPI(name, "HELMDECK_FAILPOINT="+step, "HELMDECK_FAILPOINT_FILE="+filepath.Join(c.dir, "hit-"+step))
	defer c.end(name, syscall.SIGTERM)
	spooled := ""
	if step == failpoint.AuditAfterSpool || step == failpoint.AuditAfterReplay {
		spooled = "/api/v1/packs/spooled-" + filepath.Ext(step)[1:]
		c.spool(name, step, spooled)
	}
	for range 5 {
		ids = append(ids, c.submit("test.echo", map[string]any{"message": step}, step))
	}
	for _, id := range ids {
		if got := c.ends(id); got != jobs.Succeeded {
			c.t.Errorf("job %s ended %s", id, got)
		}
	}
	c.until("death at "+step, func() bool { return c.died(name) })
	for _, id := range ids {
		c.endRecorded(id)
	}
	if spooled != "" {
		c.recorded(client.AuditQuery{EventType: "request", Limit: 1000}, func(e client.AuditEntry) bool { return e.Path == spooled })
	}
	var report client.AuditReport
	c.insist("verify the trail", func(ctx context.Context, api *client.Client) (err error) {
		report, err = api.VerifyAudit(ctx, time.Time{}, time.Time{}, 0)
		return err
	})
	if !report.OK {
		c.t.Errorf("the trail has faults: %+v", report.Faults)
	}
	return ids
}

// recorded waits until a record is in the trail, and requires that it is one.
func (c *cluster) recorded(q client.AuditQuery, is func(client.AuditEntry) bool) {
	c.t.Helper()
	n := 0
	c.until("record", func() bool {
		c.insist("list the trail", func(ctx context.Context, api *client.Client) error {
			n = 0
			for page := q; ; {
				list, err := api.Audit(ctx, page)
				if err != nil {
					return err
				}
				for _, e := range list.Entries {
					if is(e) {
						n++
					}
				}
				if page.Cursor = list.NextCursor; page.Cursor == "" {
					return nil
				}
			}
		})
		return n > 0
	})
	if n != 1 {
		c.t.Errorf("%d records of %+v, want 1", n, q)
	}
}

// spool makes a call while the bus does not answer, and lets it answer again
// once the record of the call is in the spool.
func (c *cluster) spool(name, step, path string) {
	c.t.Helper()
	c.mu.Lock()
	server := c.procs["bus"].cmd.Process
	c.mu.Unlock()
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	again := func() { _ = server.Signal(syscall.SIGCONT) } // ended already otherwise
	defer again()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.urls[0]+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	token, err := os.ReadFile(c.path("token"))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+string(token[:len(token)-1]))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = res.Body.Close() // its status is all we want
	if res.StatusCode != http.StatusNotFound {
		c.t.Errorf("a call without a bus: status %d", res.StatusCode)
	}
	c.until("spool", func() bool {
		files, _ := filepath.Glob(c.path("api", "audit", "*.spool"))
		for _, f := range files {
			if info, err := os.Stat(f); err == nil && info.Size() > 0 {
				return step != failpoint.AuditAfterSpool || c.died(name)
			}
		}
		return false
	})
}
