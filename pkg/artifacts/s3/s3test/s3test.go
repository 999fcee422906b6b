// Package s3test starts a real S3 server for tests: Versity's gateway over a
// temporary folder, on loopback. The program is built once, at a pinned version,
// into the folder .tools of the repository, beside the other tools.
package s3test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
)

// Version of the server, the same as in Taskfile.yml.
const Version = "v1.8.0"

const program = "github.com/versity/versitygw/cmd/versitygw"

// The keys of the server's only user.
const (
	AccessKey = "helmdeck-test"
	SecretKey = "helmdeck-test-secret"
)

// startWithin bounds the start; the machine may be busy.
const startWithin = 30 * time.Second

// Server is a running S3 server.
type Server struct {
	// Endpoint is 127.0.0.1:PORT.
	Endpoint string

	binary, dir string
	cmd         *exec.Cmd
	ended       chan struct{} // closed by the goroutine that waits for cmd
	log         *os.File
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatalf("start S3 server: %v", err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			if text, err := os.ReadFile(s.log.Name()); err == nil && len(text) > 0 {
				t.Logf("S3 server:\n%s", text)
			}
		}
	})
	return s
}

// Open starts a server that keeps everything in dir, for a TestMain that ends
// it with Stop.
func Open(dir string) (*Server, error) {
	binary, err := build()
	if err != nil {
		return nil, err
	}
	s := &Server{binary: binary, dir: dir}
	for _, folder := range []string{"data", "meta", "iam"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	if s.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	// Between the choice of a port and its use somebody else may take it.
	for range 5 {
		if s.Endpoint, err = freeAddress(); err != nil {
			return nil, err
		}
		if err = s.Resume(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func freeAddress() (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = ln.Close() }() // only its number is wanted
	return ln.Addr().String(), nil
}

// Resume starts a stopped server again, with the same data and address, and
// waits until it answers.
func (s *Server) Resume() error {
	s.cmd = exec.Command(s.binary, "--port", s.Endpoint, "--health", "/health", "--quiet", "--iam-dir", filepath.Join(s.dir, "iam"),
		// Attributes in files of their own: not every file system has them.
		"posix", "--sidecar", filepath.Join(s.dir, "meta"), filepath.Join(s.dir, "data"))
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // killed
	}()
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !s.answers(ctx) {
		select {
		case <-s.ended:
			text, _ := os.ReadFile(s.log.Name()) // best effort
			return fmt.Errorf("the S3 server ended at its start: %s", text)
		case <-ctx.Done():
			s.Stop()
			return fmt.Errorf("the S3 server does not answer: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

func (s *Server) answers(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Endpoint+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // nothing in it
	return resp.StatusCode == http.StatusOK
}

// Stop kills the server, as a failing machine would. Resume brings it back.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.ended
}

// Config is the configuration of a bucket on this server.
func (s *Server) Config(bucket string) s3.Config {
	return s3.Config{
		Endpoint: s.Endpoint, Bucket: bucket, AccessKey: AccessKey, SecretKey: SecretKey, Installation: "test",
	}
}

// Env is the same as environment variables, NAME=value.
func (s *Server) Env(bucket string) []string {
	return []string{
		s3.EnvEndpoint + "=" + s.Endpoint, s3.EnvBucket + "=" + bucket,
		s3.EnvAccessKey + "=" + AccessKey, s3.EnvSecretKey + "=" + SecretKey,
	}
}

// build returns the program, building it when this checkout has none. Test
// binaries of several packages may come here at once.
func build() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".tools", "versitygw-"+Version)
	binary := filepath.Join(dir, "versitygw")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // frees the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	aside := filepath.Join(dir, "new")
	cmd := exec.Command("go", "install", program+"@"+Version)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOBIN="+aside, "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install %s@%s: %w\n%s", program, Version, err, out)
	}
	return binary, os.Rename(filepath.Join(aside, "versitygw"), binary)
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if text, rerr := os.ReadFile(filepath.Join(dir, "go.mod")); rerr == nil && strings.HasPrefix(string(text), "module github.com/helmdeck/helmdeck\n") {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			err = errors.New("not within the repository")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}
