package kill

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
)

// newUp starts helmdeck up, everything in one process, with its data in dir.
func newUp(t *testing.T, dir string, env ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: filepath.Dir(dir), procs: map[string]*proc{}}
	c.env = append(os.Environ(), "HELMDECK_ACK_WAIT=2s", "HELMDECK_TEST_PACKS=1", "HELMDECK_EGRESS_ALLOWLIST=127.0.0.1/32")
	c.env = append(c.env, env...)
	t.Cleanup(c.stopAll)
	addr := freePort(t)
	c.start("up", "helmdeck", nil, "up", "--data", dir, "--listen", addr, "--slots", "1")
	c.urls = []string{"http://" + addr}
	c.ready(c.urls[0])
	api, err := client.New(c.urls[0], c.token())
	if err != nil {
		t.Fatal(err)
	}
	c.api = []*client.Client{api}
	c.log = history.NewLog()
	return c
}

// token is the administrator's of an up.
func (c *cluster) token() string {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.dir, "*", "token"))
	if err != nil || len(files) != 1 {
		c.t.Fatalf("token files %v, %v", files, err)
	}
	token, err := os.ReadFile(files[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// TestJobsSurviveARestartOfUp: queued jobs run, running ones run again and
// finished ones are still there, after a kill and after a clean stop.
func TestJobsSurviveARestartOfUp(t *testing.T) {
	t.Parallel()
	c := newUp(t, filepath.Join(t.TempDir(), "data"))
	value := uuid.NewString()
	finished := c.submit("test.echo", map[string]any{"message": value}, value)
	c.ends(finished)
	for _, how := range []string{"kill", "clean stop"} {
		running := c.submit("test.sleep", map[string]any{"ms": 1500}, "")
		queued := c.submit("test.echo", map[string]any{"message": value}, value)
		c.until("a job runs", func() bool { return c.state(running) == jobs.Running })
		if how == "kill" {
			c.crash("up")
		} else {
			c.mu.Lock()
			done := c.procs["up"].done
			_ = c.procs["up"].cmd.Process.Signal(syscall.SIGTERM) // the supervisor starts it again
			c.mu.Unlock()
			<-done
		}
		c.ready(c.urls[0])
		for _, id := range []string{running, queued} {
			if got := c.ends(id); got != jobs.Succeeded {
				t.Errorf("%s: job %s ended %s", how, id, got)
			}
		}
		if got := c.state(finished); got != jobs.Succeeded {
			t.Errorf("%s: the finished job is %s", how, got)
		}
	}
}

// TestFullDisk: with no space left the API says so, nothing accepted is lost,
// and it works again by itself once there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small tmpfs")
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("tmpfs cannot be mounted here: %v %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", disk).Run() }) // after the process ended
	c := newUp(t, filepath.Join(disk, "data"))
	c.ends(c.submit("test.echo", map[string]any{"message": "before"}, "before"))

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	var refusal error
	var accepted []string
	body := []byte(fmt.Sprintf(`{"message":%q}`, strings.Repeat("x", 200_000)))
	c.until("a submit is refused", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience/4)
		defer cancel()
		job, err := c.api[0].Submit(ctx, jobs.Request{Pack: "test.echo", Input: body})
		if err == nil {
			accepted = append(accepted, job.ID)
			return false
		}
		refusal = err
		return true
	})
	t.Logf("%d accepted, then: %v", len(accepted), refusal)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for _, id := range accepted {
		c.ends(id)
	}
	c.ready(c.urls[0])
	c.ends(c.submit("test.echo", map[string]any{"message": "after"}, "after"))
}

// fill writes until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // the disk is full by intent
	block := make([]byte, 1<<20)
	for {
		if _, err := f.Write(block); err != nil {
			return
		}
	}
}
