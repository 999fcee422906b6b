package packstest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
)

type statusInput struct {
	URL string `json:"url"`
}

type statusOutput struct {
	Status int    `json:"status"`
	Key    string `json:"artifact_key"`
}

// status is a pack under test.
var status = packs.Define(packs.Spec[statusInput, statusOutput]{
	Name: "page.status", Summary: "Says how a page answers",
	Needs: packs.Needs{Egress: true, Artifacts: true},
	Run: func(ctx context.Context, run *packs.Run, in statusInput) (statusOutput, error) {
		if err := run.CheckURL(ctx, in.URL); err != nil {
			return statusOutput{}, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, in.URL, nil)
		if err != nil {
			return statusOutput{}, packs.Errorf(packs.InvalidInput, "/url: %w", err)
		}
		resp, err := run.HTTP().Do(req)
		if err != nil {
			return statusOutput{}, fmt.Errorf("get page: %w", err)
		}
		defer resp.Body.Close()
		run.Progress(50, "page is here")
		run.Log("type " + resp.Header.Get("Content-Type"))
		ref, err := run.SaveArtifact(ctx, "page.html", "", resp.Body)
		return statusOutput{Status: resp.StatusCode, Key: ref.Key}, err
	},
})

func TestRun(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<p>hi")
	}))
	t.Cleanup(srv.Close)

	res := packstest.Run(t, status, map[string]any{"url": srv.URL, "ulr": "x"})
	var out statusOutput
	res.Decode(t, &out)
	if out.Status != 200 || len(res.Artifacts) != 1 || out.Key != res.Artifacts[0].Key || string(res.Artifacts[0].Bytes) != "<p>hi" {
		t.Errorf("got %+v", res)
	}
	if len(res.Progress) != 1 || res.Progress[0].Percent != 50 || len(res.Logs) != 1 || res.Logs[0] != "type text/html" {
		t.Errorf("got progress %v, logs %v", res.Progress, res.Logs)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "did you mean url") {
		t.Errorf("got warnings %v", res.Warnings)
	}

	for _, url := range []string{"http://10.0.0.1/", srv.URL + "/away"} {
		res := packstest.Run(t, status, map[string]any{"url": url})
		res.WantCode(t, packs.InvalidInput)
		if want := "egress denied: 10.0.0.1"; !strings.HasPrefix(res.Err.Message, want) {
			t.Errorf("%s: got message %q, want prefix %q", url, res.Err.Message, want)
		}
	}
}

func TestWithHTTP(t *testing.T) {
	t.Parallel()
	closed := errors.New("closed today")
	res := packstest.Run(t, status, `{"url":"http://a.test/"}`,
		packstest.WithHTTP(http.DefaultClient, func(context.Context, string) error { return closed }))
	res.WantCode(t, packs.InvalidInput)
	if !errors.Is(res.Err, closed) || res.Err.Message != "egress denied: closed today" {
		t.Errorf("got %v", res.Err)
	}
}

// TestWithPacks runs children, with their artifacts and failures.
func TestWithPacks(t *testing.T) {
	t.Parallel()
	type in struct {
		Text string `json:"text"`
	}
	type out struct {
		Key string `json:"key"`
	}
	save := packs.Define(packs.Spec[in, out]{Name: "t.save", Summary: "s", Needs: packs.Needs{Artifacts: true},
		Run: func(ctx context.Context, run *packs.Run, in in) (out, error) {
			if in.Text == "" {
				return out{}, packs.Errorf(packs.NotFound, "no text")
			}
			ref, err := run.SaveArtifact(ctx, "a.txt", "", strings.NewReader(in.Text))
			return out{ref.Key}, err
		}})
	type all struct {
		Keys  []string `json:"keys"`
		Wrong string   `json:"wrong"`
	}
	parent := packs.Define(packs.Spec[struct{}, all]{Name: "t.parent", Summary: "s", Needs: packs.Needs{Calls: true, Artifacts: true},
		Run: func(ctx context.Context, run *packs.Run, _ struct{}) (all, error) {
			children, err := packs.MapAs[out](ctx, run, "t.save", packs.Slice([]in{{"a"}, {""}, {"b"}}), packs.MapOptions{Policy: packs.CollectAll})
			if err != nil {
				return all{}, err
			}
			if _, err := run.StatArtifact(ctx, children[2].Out.Key); err != nil {
				return all{}, err
			}
			return all{[]string{children[0].Out.Key, children[2].Out.Key}, children[1].Err.Message}, nil
		}})
	res := packstest.Run(t, parent, nil, packstest.WithPacks(save))
	var got all
	res.Decode(t, &got)
	if len(got.Keys) != 2 || !strings.Contains(got.Wrong, "(t.save): no text") {
		t.Errorf("got %+v", got)
	}
	if last := res.Progress[len(res.Progress)-1]; last.Message != "3 of 3 t.save done, 1 failed" || last.Percent != 100 {
		t.Errorf("progress %+v", last)
	}
}
