package api_test

import (
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// TestEveryRouteHasItsRight goes through the document: what it says about
// tokens is what the server does.
func TestEveryRouteHasItsRight(t *testing.T) {
	t.Parallel()
	r := setup(t)
	fill := strings.NewReplacer("{name}", "test.echo", "{version}", "v1", "{id}", "01890000-0000-7000-8000-000000000000",
		"{key}", "operator-uploads/0123456789abcdef-x")
	n := 0
	for path, methods := range document(t, r).Paths {
		for method, op := range methods {
			n++
			method = strings.ToUpper(method)
			path := fill.Replace(path)
			var scope string
			if len(op.Security) > 0 {
				scope = op.Security[0]["bearer"][0]
			}
			if a := r.call(method, path, "", ""); (a.status == 401) != (scope != "") {
				t.Errorf("%s %s with scope %q: got %d without a token", method, path, scope, a.status)
			}
			// The reader holds packs:read alone.
			if a := r.call(method, path, reader, ""); (a.status == 403) != (scope != "" && scope != "packs:read") {
				t.Errorf("%s %s with scope %q: got %d with packs:read", method, path, scope, a.status)
			}
		}
	}
	if n < 25 {
		t.Errorf("the document has %d operations, want all", n)
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) {
		c.AllowedOrigins = []string{"https://deck.example/"}
		c.PublicURL = "https://api.example"
	})
	for origin, status := range map[string]int{
		"": 200, r.url: 200, "https://deck.example": 200, "https://api.example": 200, "HTTPS://DECK.EXAMPLE": 200,
		"http://deck.example": 403, "https://evil.example": 403, "null": 403, "https://deck.example.evil.example": 403,
	} {
		header := []string{"Origin", origin}
		if origin == "" {
			header = nil
		}
		if a := r.call("GET", "/api/v1/packs", ann, "", header...); a.status != status {
			t.Errorf("origin %q: got status %d, want %d", origin, a.status, status)
		}
	}
	a := r.call("OPTIONS", "/api/v1/jobs", "", "", "Origin", "https://deck.example", "Access-Control-Request-Method", "POST").want(t, 204)
	if a.header.Get("Access-Control-Allow-Origin") != "https://deck.example" || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("got headers %v", a.header)
	}
	r.call("OPTIONS", "/api/v1/jobs", "", "", "Origin", "https://evil.example", "Access-Control-Request-Method", "POST").want(t, 403)
	if a := r.call("GET", "/api/v1/packs", ann, ""); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("got headers %v without an origin", a.header)
	}
}

func TestCallersSeeTheirOwn(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.echo","input":{"text":"a"}}`)
	r.until(job.ID, ended)
	for _, path := range []string{"", "/result", "/result?wait=1", "/events", "/logs"} {
		r.call("GET", "/api/v1/jobs/"+job.ID+path, admin, "").want(t, 200)
		if p := decode[client.Problem](t, r.call("GET", "/api/v1/jobs/"+job.ID+path, bob, "").want(t, 404)); p.Error != packs.NotFound {
			t.Errorf("%s: got %+v", path, p)
		}
	}
	for _, path := range []string{"/cancel", "/retry"} {
		r.call("POST", "/api/v1/jobs/"+job.ID+path, bob, "").want(t, 404)
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for sent, kept := range map[string]bool{"trace-me-42": true, strings.Repeat("a", 65): false, "two words": false, "": false} {
		got := r.call("GET", "/healthz", "", "", "X-Request-Id", sent).header.Get("X-Request-Id")
		if got == "" || (got == sent) != kept {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}
