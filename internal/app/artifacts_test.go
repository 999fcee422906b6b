package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3/s3test"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// within bounds every wait; a busy machine needs its time.
const within = time.Minute

// up runs an installation in dir until stop is called or the test ends.
func up(t *testing.T, dir string, bucket *s3.Config) (c *client.Client, stop func()) {
	t.Helper()
	slots, err := app.SlotsOf([]string{"core"}, 4)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan app.Running, 1), make(chan error, 1)
	go func() {
		done <- app.Up{
			Settings: app.Settings{
				Profile: "embedded", Prefix: "hd", TestPacks: true, S3: bucket,
				Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
			},
			Data: dir, Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", Roles: []string{"api", "worker"}, Slots: slots,
			Ready: func(r app.Running) { ready <- r },
		}.Run(ctx)
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("up: %v", err)
		}
	}
	select {
	case err := <-done:
		cancel()
		t.Fatalf("up: %v", err)
	case r := <-ready:
		t.Cleanup(stop)
		token, err := os.ReadFile(r.TokenFile)
		if err != nil {
			t.Fatal(err)
		}
		if c, err = client.New(r.URL, strings.TrimSpace(string(token))); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
	}
	return c, stop
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}

// run runs a pack and returns its output.
func run(t *testing.T, c *client.Client, pack, input string) (out map[string]any) {
	t.Helper()
	res, err := c.RunPack(bounded(t), pack, json.RawMessage(input), client.RunOptions{})
	if err != nil {
		t.Fatalf("%s: %v", pack, err)
	}
	if err := json.Unmarshal(res.Output, &out); err != nil {
		t.Fatalf("%s: %v in %s", pack, err, res.Output)
	}
	return out
}

func fetch(t *testing.T, link string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("fetch %s: %v", link, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("fetch %s: %v", link, err)
	}
	return resp, string(body)
}

func download(t *testing.T, c *client.Client, key string) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := c.Download(bounded(t), key, &b); err != nil {
		t.Fatalf("download %s: %v", key, err)
	}
	return b.String()
}

// TestSwitchToS3 runs an installation without a bucket, then with one: what it
// stored before stays readable, everything new goes to the bucket.
func TestSwitchToS3(t *testing.T) {
	t.Parallel()
	dir, server := t.TempDir(), s3test.Start(t)
	put := `{"content":%q,"filename":"a.txt"}`
	c, stop := up(t, dir, nil)
	old := run(t, c, "artifact.put", fmt.Sprintf(put, "before"))
	big := run(t, c, "test.big_output", `{"bytes":400000}`)
	stop()

	cfg := server.Config("decks")
	cfg.PublicEndpoint = server.Endpoint
	cfg.Installation = ""
	c, stop = up(t, dir, &cfg)
	ready, err := c.Ready(bounded(t))
	if err != nil || ready.Checks["artifacts"] != "ok" {
		t.Errorf("readyz: got %v, %v, want the artifact store among its checks", ready.Checks, err)
	}
	oldKey := old["artifact_key"].(string)
	if got := download(t, c, oldKey); got != "before" {
		t.Errorf("stored before the switch: got %q", got)
	}
	if n := len(big["data"].(string)); n != 400_000 {
		t.Errorf("large output: got %d bytes", n)
	}

	young := run(t, c, "artifact.put", fmt.Sprintf(put, "after"))
	link := young["url"].(string)
	if resp, body := fetch(t, link); !strings.HasPrefix(link, "http://"+server.Endpoint+"/decks/") || body != "after" ||
		resp.Header.Get("Content-Disposition") != "attachment; filename=a.txt" {
		t.Errorf("link %s: got %q, %q", link, body, resp.Header)
	}
	if got := download(t, c, young["artifact_key"].(string)); got != "after" {
		t.Errorf("through the API: got %q", got)
	}
	list, err := c.Artifacts(bounded(t), client.ArtifactQuery{})
	if err != nil || len(list.Artifacts) != 2 {
		t.Fatalf("list: got %+v, %v, want two", list, err)
	}
	for i, want := range []string{"after", "before"} {
		if _, body := fetch(t, list.Artifacts[i].URL); body != want {
			t.Errorf("link of %s: got %q, want %q", list.Artifacts[i].Key, body, want)
		}
	}
	// Claim checks, both ways.
	text := strings.Repeat("x", 300_000)
	if out := run(t, c, "test.echo", fmt.Sprintf(`{"message":%q}`, text)); !strings.Contains(fmt.Sprint(out), text) {
		t.Error("large input and output: not what was sent")
	}
	for _, key := range []string{oldKey, young["artifact_key"].(string)} {
		if err := c.DeleteArtifact(bounded(t), key); err != nil {
			t.Errorf("delete %s: %v", key, err)
		}
	}
	if resp, _ := fetch(t, link); resp.StatusCode != http.StatusNotFound {
		t.Errorf("link of a deleted artifact: got %s, want 404", resp.Status)
	}

	// The bucket goes away: jobs fail with a code that is tried again, /readyz
	// names it, and all is well when it is back.
	server.Stop()
	ready, err = c.Ready(bounded(t))
	if err != nil || !strings.Contains(ready.Checks["artifacts"], s3.EnvEndpoint) {
		t.Errorf("readyz without the server: got %v, %v", ready.Checks, err)
	}
	_, err = c.RunPack(bounded(t), "artifact.put", json.RawMessage(fmt.Sprintf(put, "x")), client.RunOptions{})
	var refusal *client.Error
	if !errors.As(err, &refusal) || refusal.Code != "artifact_failed" || !refusal.Retryable {
		t.Errorf("without the server: got %v, want artifact_failed, retryable", err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	run(t, c, "artifact.put", fmt.Sprintf(put, "again"))
	stop()
}

// TestBadBucket: a definite refusal stops the start, with the remedy.
func TestBadBucket(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	cfg := server.Config("decks")
	cfg.SecretKey = "wrong"
	slots, err := app.SlotsOf([]string{"core"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	err = app.Up{
		Settings: app.Settings{Profile: "embedded", Prefix: "hd", S3: &cfg, Log: zerolog.Nop()},
		Data:     t.TempDir(), Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", Roles: []string{"api"}, Slots: slots,
	}.Run(bounded(t))
	if !errors.Is(err, s3.ErrCredentials) || !strings.Contains(fmt.Sprint(err), s3.EnvSecretKey) {
		t.Errorf("got %v, want ErrCredentials that names %s", err, s3.EnvSecretKey)
	}
}
