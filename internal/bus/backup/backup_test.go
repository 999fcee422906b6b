package backup_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/backup"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

func same(*bus.Profile) {}

// TestRehearsal takes a backup in the middle of a load, loses the server, and
// restores into a fresh one: everything accepted before the backup began ends
// once, and what had ended stays as it was told.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	first := bustest.Start(t, rig.Profile(same))
	dir := filepath.Join(t.TempDir(), "backup")
	before, delayed, large := underLoad(t, first, dir)
	first.Server.Shutdown()

	second := bustest.Start(t, rig.Profile(same), bustest.WithoutInit())
	admin := second.Conn(bus.RoleAdmin)
	m, err := backup.Restore(bustest.Context(t), admin, dir, false, nil)
	if err != nil {
		t.Fatalf("Restore: %v", err)
	}
	st, err := admin.Status(bustest.Context(t))
	if err != nil || len(st.Mismatches) > 0 || st.Streams != len(m.Streams) {
		t.Errorf("topology after the restore: %+v, %v, want %d streams as they should be", st, err, len(m.Streams))
	}

	r := rig.Over(t, second)
	for i := range 3 {
		r.Worker(fmt.Sprint("new-", i))
	}
	r.Background("reconciler", (&control.Reconciler{
		Store: r.Store, Jobs: r.Index, Every: 200 * time.Millisecond, Grace: time.Nanosecond, Log: r.Log,
	}).Run)
	for _, id := range before.IDs() {
		before.Ended(id, r.Ends(id).State)
	}
	if job := r.Ends(delayed); job.State != jobs.Succeeded {
		t.Errorf("the delayed job is %s", job.State)
	}
	if job, err := r.Jobs.Get(r.Ctx(), rig.Ann, large); err != nil || len(job.Output) < 300_000 {
		t.Errorf("large output: %d bytes, %v", len(job.Output), err)
	}
	var violations []history.Violation
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("violations seen last: %v", violations)
		}
	})
	r.Until("rest without a violation", func() bool {
		violations, err = history.Check(r.Ctx(), second.Conn(bus.RoleAPI).JetStream(), r.Store, before, history.Options{})
		if err != nil {
			t.Fatalf("check: %v", err)
		}
		return len(violations) == 0
	})
}

// underLoad runs workers and submitters, backs up in the middle, and returns
// what was accepted before the backup began.
func underLoad(t *testing.T, env *bustest.Env, dir string) (before *history.Log, delayed, large string) {
	t.Helper()
	before = history.NewLog()
	t.Run("load", func(t *testing.T) { // ends all of it before the server goes
		r := rig.Over(t, env)
		for i := range 3 {
			r.Worker(fmt.Sprint("old-", i))
		}
		delayed = r.Submit("test.echo", map[string]any{"message": "later"}, func(q *jobs.Request) {
			q.RunAt = time.Now().Add(3 * time.Second)
		}).ID
		big := strings.Repeat("x", 300_000) // by way of the claim check
		large = r.Submit("test.echo", map[string]any{"message": big}).ID
		before.Accepted(large, "")
		var accepted, begun, stop atomic.Int64
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := 0; stop.Load() == 0; i++ {
					value := fmt.Sprintf("value-%d-%d", w, i)
					pack, input := "test.echo", map[string]any{"message": value}
					if i%5 == 0 {
						pack, input, value = "test.sleep", map[string]any{"ms": 100}, ""
					}
					if i%17 == 0 {
						pack, input = "test.fail", map[string]any{"code": "handler_failed"}
					}
					raw, err := json.Marshal(input)
					if err != nil {
						t.Error(err)
						return
					}
					in := begun.Load() == 0
					job, err := r.Jobs.Submit(r.Ctx(), rig.Ann, jobs.Request{Pack: pack, Input: raw})
					if err != nil {
						t.Errorf("submit: %v", err)
						return
					}
					if in && begun.Load() == 0 {
						before.Accepted(job.ID, value)
					}
					accepted.Add(1)
				}
			})
		}
		r.Until("load", func() bool { return accepted.Load() >= 150 })
		begun.Store(1)
		m, err := backup.Write(r.Ctx(), env.Conn(bus.RoleAdmin), dir, "test", nil)
		if err != nil {
			t.Errorf("Write: %v", err)
		}
		at := accepted.Load()
		r.Until("more load", func() bool { return accepted.Load() >= at+50 })
		stop.Store(1)
		wg.Wait()
		t.Logf("backup of %d messages, %d bytes, with %d jobs accepted before and %d after",
			m.Messages(), m.Bytes(), len(before.IDs()), accepted.Load()-int64(len(before.IDs())))
	})
	return before, delayed, large
}

// TestEverythingComesBack compares every stream of a bus at rest, message by
// message, buckets and objects included.
func TestEverythingComesBack(t *testing.T) {
	t.Parallel()
	ctx := bustest.Context(t)
	first := bustest.Start(t, bustest.WithPrefix("acme"))
	js := first.Conn(bus.RoleAPI).JetStream()
	kv, err := js.KV(ctx, bus.BucketVault)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := kv.Put(ctx, fmt.Sprint("key-", i%3), fmt.Append(nil, "value-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Delete(ctx, "key-2"); err != nil {
		t.Fatal(err)
	}
	objects, err := js.Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(ctx, "p/漢", nil, strings.NewReader(strings.Repeat("content", 100_000))); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: "evt.a.b.c.lc", Header: map[string][]string{"ce-id": {"1"}}, Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := backup.Write(ctx, first.Conn(bus.RoleAdmin), dir, "test", nil); err != nil {
		t.Fatalf("Write: %v", err)
	}
	want := contents(ctx, t, first.Conn(bus.RoleAdmin))

	second := bustest.Start(t, bustest.WithPrefix("acme")) // set up and empty
	told := 0
	m, err := backup.Restore(ctx, second.Conn(bus.RoleAdmin), dir, false, func(_ string, done, all int) {
		if told++; done != told || all < done {
			t.Errorf("progress %d of %d after %d", done, all, told)
		}
	})
	if err != nil || told != len(m.Streams) {
		t.Fatalf("Restore: %v, progress %d of %d", err, told, len(m.Streams))
	}
	if diff := gocmp.Diff(want, contents(ctx, t, second.Conn(bus.RoleAdmin))); diff != "" {
		t.Errorf("(-first +second)\n%s", diff)
	}
}

func contents(ctx context.Context, t *testing.T, conn *bus.Conn) map[string][]bus.RawMessage {
	t.Helper()
	streams, err := conn.Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]bus.RawMessage{}
	for _, s := range streams {
		if strings.HasSuffix(s.Stream, bus.StreamAudit) {
			continue // the server's own
		}
		if _, err := conn.Since(ctx, s.Stream, 0, func(m bus.RawMessage) error {
			out[s.Stream] = append(out[s.Stream], m)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// written is a small backup.
func written(t *testing.T) string {
	t.Helper()
	source := bustest.Start(t)
	if _, err := source.Conn(bus.RoleAPI).JetStream().Publish(bustest.Context(t), bus.Outgoing{Subject: "evt.a.b.c.lc", Data: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := backup.Write(bustest.Context(t), source.Conn(bus.RoleAdmin), dir, "test", nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copied(t *testing.T, whole string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestVerify(t *testing.T) {
	t.Parallel()
	whole := written(t)
	replace := func(old, with string) func([]byte) []byte {
		return func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), old, with)) }
	}
	for _, tt := range []struct {
		name, file string
		change     func([]byte) []byte // nil: removed
		want       error
	}{
		{"whole", "manifest.json", func(b []byte) []byte { return b }, nil},
		{"no manifest", "manifest.json", nil, backup.ErrDamaged},
		{"no JSON", "manifest.json", func(b []byte) []byte { return b[:len(b)/2] }, backup.ErrDamaged},
		{"missing file", "EVT.snapshot", nil, backup.ErrDamaged},
		{"altered file", "EVT.snapshot", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, backup.ErrDamaged},
		{"cut file", "EVT.snapshot", func(b []byte) []byte { return b[:len(b)-1] }, backup.ErrDamaged},
		{"a file elsewhere", "manifest.json", replace(`"EVT.snapshot"`, `"../EVT.snapshot"`), backup.ErrDamaged},
		{"newer streams", "manifest.json", replace(fmt.Sprintf(`"topology": %d`, bus.TopologyVersion), `"topology": 99`), backup.ErrNewer},
		{"newer format", "manifest.json", replace(fmt.Sprintf(`"format": %d`, backup.Format), `"format": 99`), backup.ErrNewer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := copied(t, whole)
			if tt.change == nil {
				if err := os.Remove(filepath.Join(dir, tt.file)); err != nil {
					t.Fatal(err)
				}
			} else {
				change(t, dir, tt.file, tt.change)
			}
			if _, err := backup.Verify(t.Context(), dir); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestRefusals: what must not be restored, with nothing changed.
func TestRefusals(t *testing.T) {
	t.Parallel()
	whole := written(t)
	publish := func(t *testing.T, env *bustest.Env) {
		t.Helper()
		if _, err := env.Conn(bus.RoleAPI).JetStream().Publish(bustest.Context(t), bus.Outgoing{Subject: "evt.x.y.z.lc", Data: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name     string
		old, new string // in the manifest
		prefix   string
		fill     func(t *testing.T, env *bustest.Env)
		want     error
	}{
		{name: "damaged", old: `"sha256": "`, new: `"sha256": "0`, want: backup.ErrDamaged},
		{name: "another prefix", prefix: "acme", want: backup.ErrOther},
		{name: "of a cluster", old: `"replicas": 1`, new: `"replicas": 3`, want: backup.ErrOther},
		{name: "in use", want: backup.ErrInUse, fill: pulling},
		{name: "not empty", want: backup.ErrNotEmpty, fill: publish},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, dir := bustest.Context(t), copied(t, whole)
			change(t, dir, "manifest.json", func(b []byte) []byte { return []byte(strings.Replace(string(b), tt.old, tt.new, 1)) })
			env := bustest.Start(t, bustest.WithPrefix(cmp.Or(tt.prefix, bus.DefaultPrefix)))
			if tt.fill != nil {
				tt.fill(t, env)
			}
			admin := env.Conn(bus.RoleAdmin)
			want := contents(ctx, t, admin)
			if _, err := backup.Restore(ctx, admin, dir, false, nil); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if diff := gocmp.Diff(want, contents(ctx, t, admin)); diff != "" {
				t.Errorf("something was changed: %s", diff)
			}
			if tt.want != backup.ErrNotEmpty {
				return
			}
			if _, err := backup.Restore(ctx, admin, dir, true, nil); err != nil {
				t.Errorf("with replace: %v", err)
			}
			if got := contents(ctx, t, admin)[bus.StreamEvents]; len(got) != 1 || got[0].Subject != "hd.evt.a.b.c.lc" {
				t.Errorf("with replace: got %+v, want the backup's", got)
			}
		})
	}
}

// pulling leaves a worker waiting at a consumer until the test ends.
func pulling(t *testing.T, env *bustest.Env) {
	js, admin := env.Conn(bus.RoleWorker).JetStream(), env.Conn(bus.RoleAdmin)
	ctx, cancel := context.WithCancel(bustest.Context(t))
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := js.Pull(ctx, bus.JobsStream("core"), bus.LaneConsumer(jobs.Normal, 0), 1, time.Minute)
		if err != nil && ctx.Err() == nil {
			t.Errorf("Pull: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	for n := 0; n == 0; {
		var err error
		if n, err = admin.Pulling(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteRefusesAFullFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	env := bustest.Start(t)
	if _, err := backup.Write(bustest.Context(t), env.Conn(bus.RoleAdmin), dir, "test", nil); !errors.Is(err, backup.ErrNotEmpty) {
		t.Errorf("got %v, want ErrNotEmpty", err)
	}
	// Only the administrator may copy streams.
	var b bytes.Buffer
	short, stop := context.WithTimeout(t.Context(), time.Second) // the refusal comes beside the answer
	defer stop()
	if _, err := env.Conn(bus.RoleWorker).Snapshot(short, bus.StreamEvents, &b); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("as a worker: got %v, want ErrDenied", err)
	}
	// What breaks off leaves nothing behind.
	dir = t.TempDir()
	ctx, cancel := context.WithCancel(bustest.Context(t))
	_, err := backup.Write(ctx, env.Conn(bus.RoleAdmin), dir, "test", func(_ string, done, _ int) {
		if done == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func change(t *testing.T, dir, name string, fn func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fn(b), 0o600); err != nil {
		t.Fatal(err)
	}
}
