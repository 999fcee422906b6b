package testpacks_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
)

type in = map[string]any

// crashInput, when set, makes the test binary run a pack that kills it.
const crashPack, crashInput = "TESTPACKS_CRASH_PACK", "TESTPACKS_CRASH_INPUT"

func TestAllAreHidden(t *testing.T) {
	t.Parallel()
	for _, p := range testpacks.All {
		if info := p.Info(); !info.Hidden || !strings.HasPrefix(info.Name, "test.") {
			t.Errorf("%s is not a hidden test pack", info.Name)
		}
	}
}

func TestEcho(t *testing.T) {
	t.Parallel()
	var out map[string]any
	packstest.Run(t, testpacks.Echo, in{"message": "hi", "data": in{"a": []int{1}}}, packstest.WithAttempt(2)).Decode(t, &out)
	want := map[string]any{"message": "hi", "data": map[string]any{"a": []any{1.0}}, "attempt": 2.0, "subject": "tester"}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	res := packstest.Run(t, testpacks.Sleep, in{"ms": 30, "progress_every_ms": 1})
	var out struct {
		SleptMS int64 `json:"slept_ms"`
	}
	if res.Decode(t, &out); out.SleptMS < 30 || len(res.Progress) == 0 {
		t.Errorf("slept %d ms with %d reports", out.SleptMS, len(res.Progress))
	}
	for i, p := range res.Progress {
		if p.Percent < 0 || p.Percent > 100 || i > 0 && p.Percent < res.Progress[i-1].Percent {
			t.Errorf("report %d says %v", i, p)
		}
	}
}

func TestSleepStopsWhenTold(t *testing.T) {
	t.Parallel()
	told := errors.New("told")
	ctx, cancel := context.WithCancelCause(t.Context())
	res := packstest.Run(t, testpacks.Sleep, in{"ms": 900000, "progress_every_ms": 1}, packstest.WithContext(ctx),
		packstest.WithOnProgress(func(packstest.Progress) { cancel(told) }))
	res.WantCode(t, packs.Cancelled)
	if !errors.Is(res.Err, told) {
		t.Errorf("%v does not wrap the cause", res.Err)
	}
	packstest.Run(t, testpacks.Sleep, in{"ms": 900000}, packstest.WithTimeout(time.Millisecond)).WantCode(t, packs.Timeout)
	res = packstest.Run(t, testpacks.Sleep, in{"ms": 50, "ignore_cancel": true}, packstest.WithTimeout(time.Millisecond))
	if res.Err != nil {
		t.Errorf("a sleep that ignores its end ended with %v", res.Err)
	}
}

func TestFail(t *testing.T) {
	t.Parallel()
	res := packstest.Run(t, testpacks.Fail, nil)
	res.WantCode(t, packs.HandlerFailed)
	res = packstest.Run(t, testpacks.Fail, in{"code": "rate_limited", "message": "slow down", "retry_after_ms": 1500})
	res.WantCode(t, packs.RateLimited)
	if res.Err.Message != "slow down" || res.Err.RetryAfter != 1500*time.Millisecond {
		t.Errorf("got %+v", res.Err)
	}
	packstest.Run(t, testpacks.Fail, in{"times": 2}, packstest.WithAttempt(2)).WantCode(t, packs.HandlerFailed)
	if res := packstest.Run(t, testpacks.Fail, in{"times": 2}, packstest.WithAttempt(3)); res.Err != nil {
		t.Errorf("attempt 3 ended with %v", res.Err)
	}
}

func TestCrash(t *testing.T) {
	t.Parallel()
	packstest.Run(t, testpacks.Crash, nil).WantCode(t, packs.HandlerFailed)
	if res := packstest.Run(t, testpacks.Crash, in{"times": 1}, packstest.WithAttempt(2)); res.Err != nil {
		t.Errorf("attempt 2 ended with %v", res.Err)
	}
}

// TestProcessDies runs packs that kill their process in a child.
func TestProcessDies(t *testing.T) {
	if name := os.Getenv(crashPack); name != "" {
		p, err := packs.NewCatalog(testpacks.All...).Get(name, "")
		if err != nil {
			t.Fatal(err)
		}
		packstest.Run(t, p, os.Getenv(crashInput))
		t.Fatal("the process lives on")
	}
	t.Parallel()
	for name, input := range map[string]string{
		"test.crash":    `{"mode":"exit"}`,
		"test.artifact": `{"bytes":1000000,"crash_after_bytes":500000}`,
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcessDies$")
		cmd.Env = append(os.Environ(), crashPack+"="+name, crashInput+"="+input)
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() == 1 {
			t.Errorf("%s: ended with %v, want a kill:\n%s", name, err, out)
		}
	}
}

func TestBigOutput(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 7, 1 << 20} {
		var out struct{ Data string }
		if packstest.Run(t, testpacks.BigOutput, in{"bytes": n}).Decode(t, &out); len(out.Data) != n {
			t.Errorf("got %d bytes, want %d", len(out.Data), n)
		}
	}
}

func TestEffect(t *testing.T) {
	t.Parallel()
	posts := make(chan map[string]any, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost {
			t.Errorf("got %s with %v", r.Method, err)
		}
		posts <- body
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(srv.Close)
	res := packstest.Run(t, testpacks.Effect, in{"url": srv.URL})
	var out struct{ Status int }
	if res.Decode(t, &out); out.Status != http.StatusCreated || res.Begun != 1 {
		t.Errorf("got status %d, begun %d times", out.Status, res.Begun)
	}
	if body := <-posts; body["job_id"] == "" || body["attempt"] != 1.0 {
		t.Errorf("got body %v", body)
	}
	packstest.Run(t, testpacks.Effect, in{"url": srv.URL}, packstest.WithBegun()).WantCode(t, packs.OutcomeUnknown)
	packstest.Run(t, testpacks.Effect, in{"url": "http://10.0.0.1/"}).WantCode(t, packs.InvalidInput)
	if len(posts) != 0 {
		t.Errorf("%d posts too many", len(posts))
	}
}

func TestArtifact(t *testing.T) {
	t.Parallel()
	res := packstest.Run(t, testpacks.Artifact, in{"bytes": 1000, "name": "a.bin"})
	if res.Err != nil || len(res.Artifacts) != 1 {
		t.Fatalf("got %+v", res)
	}
	a := res.Artifacts[0]
	want := make([]byte, 1000)
	for i := range want {
		want[i] = byte(i % 251)
	}
	if diff := cmp.Diff(want, a.Bytes); diff != "" || a.Name != "a.bin" {
		t.Errorf("got %q (-want +got):\n%s", a.Name, diff)
	}
}
