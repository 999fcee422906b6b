package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
)

// patience bounds every wait of this package.
const patience = 90 * time.Second

// world is an installation of role processes.
type world struct {
	t         *testing.T
	dir, nats string
	js        bus.JetStream
	store     *jobstore.Store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan app.Running, 1), make(chan error, 1)
	go func() {
		done <- app.Up{
			Settings: settings(), Data: filepath.Join(w.dir, "bus"), NATSListen: "127.0.0.1:0", Roles: []string{"none"},
			Ready: func(r app.Running) { ready <- r },
		}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("bus: %v", err)
		}
	})
	select {
	case err := <-done:
		done <- err
		t.Fatalf("bus: %v", err)
	case r := <-ready:
		w.nats = r.NATSURL
	}
	creds, err := app.ReadCreds(filepath.Join(w.dir, "bus", "nats-api.json"))
	if err != nil {
		t.Fatal(err)
	}
	profile, err := bus.ProfileByName("embedded")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := bus.Connect(w.ctx(), bus.Config{URL: w.nats, User: bus.RoleAPI, Password: creds.Password, Name: "test", Profile: profile, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w.js = conn.JetStream()
	if w.store, err = jobstore.New(w.js, "test", 1, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

// start starts a process; kill ends it at once and may be called again.
func (w *world) start(binary string, o order) (kill func()) {
	w.t.Helper()
	o.Dir, o.NATS = w.dir, w.nats
	text, err := json.Marshal(o)
	if err != nil {
		w.t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), orderName+"="+string(text))
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()         // killed
			if w.t.Failed() {
				w.t.Logf("%s of %s:\n%s", o.Role, filepath.Base(binary), log.String())
			}
		})
	}
	w.t.Cleanup(kill)
	return kill
}

func (w *world) api(binary string) (c *client.Client, kill func()) {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close() // only its number is wanted
	kill = w.start(binary, order{Role: "api", Listen: addr})
	w.until("the API answers", func() bool {
		token, err := os.ReadFile(filepath.Join(w.dir, "token"))
		if err != nil {
			return false
		}
		if c, err = client.New("http://"+addr, strings.TrimSpace(string(token))); err != nil {
			w.t.Fatal(err)
		}
		r, err := c.Ready(w.ctx())
		return err == nil && r.Status == "ready"
	})
	w.t.Cleanup(c.Close)
	return c, kill
}

func (w *world) worker(binary string) (kill func()) { return w.start(binary, order{Role: "worker"}) }

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	ctx := w.ctx()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s: not within the time", what)
		case <-tick.C:
		}
	}
}

// record is the newest event of a job as it lies on the bus.
func (w *world) record(id string) map[string]any {
	w.t.Helper()
	m, err := w.js.Last(w.ctx(), bus.StreamEvents, "evt.*.*."+id+".lc", true)
	if err != nil {
		w.t.Fatalf("read job %s: %v", id, err)
	}
	var members map[string]any
	if err := json.Unmarshal(m.Data, &members); err != nil {
		w.t.Fatal(err)
	}
	return members
}

func echo(version, message string) jobs.Request {
	input, _ := json.Marshal(map[string]string{"message": message}) // of strings
	return jobs.Request{Pack: "test.echo", Version: version, Input: input}
}

// TestSideBySide: replicas and workers of both versions share a load while one
// after the other is killed; all jobs end once.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	present := os.Args[0]
	old, _ := w.api(present)
	young, killYoungAPI := w.api(futureBinary)
	killOld := w.worker(present)
	killYoung := w.worker(futureBinary)

	log := history.NewLog()
	var accepted, stop atomic.Int64
	var mu sync.Mutex // guards second
	second := map[string]bool{}
	var submitters sync.WaitGroup
	for i, c := range []*client.Client{old, young} {
		submitters.Go(func() {
			for n := 0; stop.Load() == 0; n++ {
				value := fmt.Sprintf("value-%d-%d", i, n)
				req := echo("v1", value)
				if c == young && n%3 == 0 {
					req = echo("v2", value)
				}
				if n%4 == 0 {
					req = jobs.Request{Pack: "test.sleep", Input: json.RawMessage(`{"ms":200}`)}
					value = ""
				}
				job, err := c.Submit(t.Context(), req)
				if err != nil {
					if c == young { // it is killed in the middle
						return
					}
					t.Errorf("submit: %v", err)
					return
				}
				log.Accepted(job.ID, value)
				accepted.Add(1)
				mu.Lock()
				second[job.ID] = req.Version == "v2"
				mu.Unlock()
			}
		})
	}
	after := func(n int64) {
		t.Helper()
		from := accepted.Load()
		w.until("more jobs", func() bool { return accepted.Load() >= from+n })
	}
	after(60)
	killOld()
	after(40)
	w.worker(present)
	killYoung()
	after(40)
	killYoungAPI()
	w.worker(futureBinary)
	after(30)
	stop.Store(1)
	submitters.Wait()

	w.until("all jobs have ended", func() bool {
		for _, id := range log.IDs() {
			if j, err := old.Job(w.ctx(), id); err != nil || !j.State.Terminal() {
				return false
			}
		}
		return true
	})
	w.until("rest without a violation", func() bool {
		violations, err := history.Check(w.ctx(), w.js, w.store, log, history.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(violations) > 0 && t.Context().Err() == nil {
			t.Logf("not yet: %v", violations[0])
		}
		return len(violations) == 0
	})
	for _, id := range log.IDs() {
		j, err := old.Job(w.ctx(), id)
		if err != nil || j.State != jobs.Succeeded {
			t.Errorf("job %s: %s %+v, %v", id, j.State, j.Error, err)
		}
		if second[id] && (j.Version != "v2" || j.Attempt != 1) {
			t.Errorf("job of the new version: %s, attempt %d", j.Version, j.Attempt)
		}
	}
}

// TestOlderWorkerKeepsMembers: both directions, from submit to end.
func TestOlderWorkerKeepsMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	young, _ := w.api(futureBinary)
	kill := w.worker(os.Args[0])
	job, err := young.Submit(w.ctx(), echo("v1", "x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := young.Await(w.ctx(), job.ID); err != nil {
		t.Fatalf("a later job on a present worker: %v", err)
	}
	got := w.record(job.ID)
	if by, _ := got["future_submitted"].(map[string]any); by["by"] != "future" || got["future_state"] != "queued" || got["state"] != "succeeded" {
		t.Errorf("record: %v, want the members of the later version beside what the present one wrote", got)
	}

	// Begun by a later worker, which dies, and ended by a present one.
	kill()
	killYoung := w.worker(futureBinary)
	job, err = young.Submit(w.ctx(), jobs.Request{Pack: "test.sleep", Input: json.RawMessage(`{"ms":1500}`)})
	if err != nil {
		t.Fatal(err)
	}
	w.until("the job runs", func() bool {
		j, err := young.Job(w.ctx(), job.ID)
		return err == nil && j.State == jobs.Running
	})
	killYoung()
	w.worker(os.Args[0])
	if _, err := young.Await(w.ctx(), job.ID); err != nil {
		t.Fatalf("a job of a lost later worker on a present one: %v", err)
	}
	if got := w.record(job.ID); got["future_state"] != "running" || got["state"] != "succeeded" || got["lost"] != 1.0 {
		t.Errorf("record: %v, want what the lost worker wrote kept", got)
	}
}

// TestNobodyServesTheVersion: the job waits, says so, counts, charges nothing,
// and runs when a worker that has it comes.
func TestNobodyServesTheVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, _ := w.api(os.Args[0])
	young, _ := w.api(futureBinary)
	w.worker(os.Args[0])
	job, err := young.Submit(w.ctx(), echo("v2", "x"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*client.Client{"present": old, "later": young} {
		w.until("the reason is told by the "+name+" API", func() bool {
			j, err := c.Job(w.ctx(), job.ID)
			return err == nil && strings.Contains(j.WaitingReason, "no worker serves pack test.echo v2 in the pool core")
		})
		var seen client.PoolStatus
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("pool as the %s API saw it last: %+v", name, seen)
			}
		})
		w.until("the "+name+" API counts the job", func() bool {
			list, err := c.Pools(w.ctx())
			for _, p := range list {
				if p.Pool == "core" {
					seen = p
				}
				if p.Pool == "core" && p.Unserved == 1 && p.Workers == 1 {
					return err == nil
				}
			}
			return false
		})
	}
	// Others of the pool are not held up.
	other, err := old.Submit(w.ctx(), echo("v1", "y"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Await(w.ctx(), other.ID); err != nil {
		t.Fatalf("another job: %v", err)
	}
	w.worker(futureBinary)
	if _, err := young.Await(w.ctx(), job.ID); err != nil {
		t.Fatalf("with a later worker: %v", err)
	}
	if j, err := old.Job(w.ctx(), job.ID); err != nil || j.Attempt != 1 || j.Lost != 0 || !strings.Contains(string(j.Output), "v2 x") {
		t.Errorf("the job: %+v, %v, want one attempt of v2", j, err)
	}
}
