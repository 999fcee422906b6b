package process_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

// TestMemoryLimit: a program that takes more than its sidecar may have is
// killed, and the sidecar goes on.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const lease = "hungry"
	rt := open(t, sessionstest.Config(t))
	if !rt.LimitsMemory() {
		t.Skip("no control groups can be made here")
	}
	_, err := rt.Start(t.Context(), sessions.StartSpec{
		LeaseID: lease, Generation: 1, Token: "token",
		Spec: sessions.Spec{Image: process.ImageBase, Memory: 64 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := rt.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("list: got %+v, %v", list, err)
	}
	a := sessions.NewAgent(list[0].Endpoint, "token", 1)
	// dd reads its whole block into memory.
	take := func(size string) error {
		_, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"dd", "if=/dev/zero", "of=/dev/null", "count=1", "bs=" + size}})
		return err
	}
	if err := take("256M"); !errors.Is(err, sessions.ErrKilled) {
		t.Errorf("256 MiB of 64: got %v, want ErrKilled", err)
	}
	if err := take("8M"); err != nil {
		t.Errorf("8 MiB of 64: %v", err)
	}
	if err := rt.Stop(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, _ fs.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(p), "helmdeck-") && strings.HasSuffix(p, "-"+lease) {
			t.Errorf("control group %s is left", p)
		}
		return nil // groups of others come and go
	})
}
