package packs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

func plain(name string, version int, hidden bool) packs.Pack {
	return packs.Define(packs.Spec[struct{}, struct{}]{
		Name: name, Version: version, Summary: "s", Hidden: hidden,
		Run: func(context.Context, *packs.Run, struct{}) (struct{}, error) { return struct{}{}, nil },
	})
}

func TestCatalogGet(t *testing.T) {
	t.Parallel()
	c := packs.NewCatalog(plain("http.fetch", 10, false), plain("http.fetch", 2, false), plain("http.post", 1, false), plain("test.echo", 1, true))
	tests := []struct {
		name, version string
		want          string // name@version, or what the error says
		code          packs.Code
	}{
		{name: "http.fetch", want: "http.fetch@v10"},
		{name: "http.fetch", version: "latest", want: "http.fetch@v10"},
		{name: "http.fetch", version: "v2", want: "http.fetch@v2"},
		{name: "http.fetch", version: "2", want: "http.fetch@v2"},
		{name: "http.fetch@v2", want: "http.fetch@v2"},
		{name: "http.fetch@v2", version: "v2", want: "http.fetch@v2"},
		{name: "test.echo", want: "test.echo@v1"},
		{name: "http.fetch@v2", version: "v10", want: "give one of them", code: packs.InvalidInput},
		{name: "http.fetch", version: "v3", want: "it has v2, v10", code: packs.NotFound},
		{name: "http_fetch", want: "did you mean http.fetch", code: packs.NotFound},
		{name: "http.fetsh", want: "did you mean http.fetch", code: packs.NotFound},
		{name: "test.ech", want: "list the packs", code: packs.NotFound}, // hidden ones are not suggested
		{name: strings.Repeat("x", 1<<20), want: "there is no pack", code: packs.NotFound},
	}
	for _, tt := range tests {
		p, err := c.Get(tt.name, tt.version)
		if tt.code == "" {
			if err != nil {
				t.Errorf("Get(%q, %q): %v", tt.name, tt.version, err)
			} else if got := p.Info().Name + "@" + p.Info().Version; got != tt.want {
				t.Errorf("Get(%q, %q) = %s, want %s", tt.name, tt.version, got, tt.want)
			}
			continue
		}
		got, ok := errors.AsType[*packs.Error](err)
		if !ok || got.Code != tt.code || !strings.Contains(got.Message, tt.want) {
			t.Errorf("Get(%.20q, %q): got %.300v, want %s saying %q", tt.name, tt.version, err, tt.code, tt.want)
		}
	}
}

func TestCatalogList(t *testing.T) {
	t.Parallel()
	c := packs.NewCatalog(plain("b.b", 1, false), plain("a.a", 2, false), plain("a.a", 1, false), plain("test.echo", 1, true))
	names := func(list []packs.Pack) (out []string) {
		for _, p := range list {
			out = append(out, p.Info().Name+"@"+p.Info().Version)
		}
		return out
	}
	if diff := cmp.Diff([]string{"a.a@v1", "a.a@v2", "b.b@v1"}, names(c.List())); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a.a@v1", "a.a@v2", "b.b@v1", "test.echo@v1"}, names(c.ListAll())); diff != "" {
		t.Errorf("ListAll (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a.a", "b.b"}, c.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
	if recovered(func() { packs.NewCatalog(plain("a.a", 1, false), plain("a.a", 1, false)) }) == nil {
		t.Error("a duplicate did not panic")
	}
}
