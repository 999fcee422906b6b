package s3_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3/s3test"
)

// server serves all tests but those that stop theirs.
var server *s3test.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "s3-")
	if err == nil {
		server, err = s3test.Open(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start S3 server:", err)
		return 1
	}
	defer func() {
		server.Stop()
		_ = os.RemoveAll(dir)
	}()
	return m.Run()
}

var buckets atomic.Int64

// newBucket is a name no other test has.
func newBucket() string { return fmt.Sprintf("bucket-%d", buckets.Add(1)) }

// open returns the blobs of cfg, whose bucket exists.
func open(t *testing.T, cfg s3.Config) *s3.Blobs {
	t.Helper()
	b, err := s3.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatalf("Ensure: %v", err)
	}
	return b
}
