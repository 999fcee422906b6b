package sessionstest

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

func filesBothWays(t *testing.T, b *bench) {
	u := b.start("base")
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	if err := u.WriteFile(b.ctx, "a/b/c.bin", bytes.NewReader(want)); err != nil {
		t.Fatalf("write: %v", err)
	}
	r, err := u.ReadFile(b.ctx, "a/b/c.bin")
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want the %d written", len(got), err, len(want))
	}
	_ = r.Close()
	if _, err := u.ReadFile(b.ctx, "none"); !errors.Is(err, sessions.ErrNotFound) {
		t.Errorf("missing file: got %v, want ErrNotFound", err)
	}
	// A writer that breaks off leaves the old content.
	broken := errors.New("broken")
	if err := u.WriteFile(b.ctx, "a/b/c.bin", io.MultiReader(strings.NewReader("half"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("broken writer: got %v", err)
	}
	b.until("the broken write left nothing", func() bool { return b.sh(u, "ls -A a/b; wc -c < a/b/c.bin") == "c.bin\n3145728\n" })
	// What programs write can be read, and the other way round.
	if got := b.sh(u, "sha256sum < a/b/c.bin; echo made > made.txt"); len(got) < 64 {
		t.Errorf("got %q", got)
	}
	if r, err = u.ReadFile(b.ctx, "made.txt"); err != nil {
		t.Fatal(err)
	}
	if data, _ := io.ReadAll(r); string(data) != "made\n" {
		t.Errorf("got %q", data)
	}
	_ = r.Close()
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func filesStayInScratch(t *testing.T, b *bench) {
	u := b.start("base")
	b.sh(u, "ln -s /etc etc; ln -s /etc/passwd passwd; ln -s .. up; mkfifo pipe; mkdir folder; ln -s folder/../ok inside; echo fine > ok; ln -s /proc/self/root root")
	for _, p := range []string{
		"", "/etc/passwd", "../x", "folder/../../x", "etc/passwd", "passwd", "up/x", "root/etc/passwd", "pipe", "folder", ".", "a\x00b",
	} {
		if r, err := u.ReadFile(b.ctx, p); err == nil {
			_ = r.Close()
			t.Errorf("read of %q succeeded", p)
		}
		if p == "passwd" || p == "pipe" {
			continue // a write replaces the link or pipe itself
		}
		if err := u.WriteFile(b.ctx, p, strings.NewReader("x")); err == nil {
			t.Errorf("write of %q succeeded", p)
		}
	}
	if err := u.WriteFile(b.ctx, "passwd", strings.NewReader("mine")); err != nil {
		t.Errorf("write over a link: %v", err)
	}
	if data, _ := os.ReadFile("/etc/passwd"); string(data) == "mine" {
		t.Error("a link led the write out of the scratch folder")
	}
	r, err := u.ReadFile(b.ctx, "inside")
	if err != nil {
		t.Fatalf("link within scratch: %v", err)
	}
	_ = r.Close()
}
