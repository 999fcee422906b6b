package artifacts_test

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

const linkedKey = "slides.render/0123456789abcdef-deck 漢.pdf"

func TestLink(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := b.advance(0)
	good := b.Link(linkedKey, time.Time{})
	minute := b.Link(linkedKey, now.Add(time.Minute))
	values, err := url.ParseQuery(good)
	if err != nil {
		t.Fatal(err)
	}
	with := func(name, value string) string {
		v, err := url.ParseQuery(good)
		if err != nil {
			t.Fatal(err)
		}
		v.Set(name, value)
		return v.Encode()
	}
	signature, expires := values.Get("signature"), values.Get("expires")
	flipped := "0"
	if signature[0] == '0' {
		flipped = "1"
	}
	for _, tt := range []struct {
		name, key, query string
		after            time.Duration
		ok               bool
	}{
		{"as made", linkedKey, good, 0, true},
		{"with another parameter", linkedKey, good + "&download=1", 0, true},
		{"just before 15 minutes", linkedKey, good, 15*time.Minute - 2*time.Second, true},
		{"after 15 minutes", linkedKey, good, 15 * time.Minute, false},
		{"own expiry", linkedKey, minute, 58 * time.Second, true},
		{"own expiry passed", linkedKey, minute, time.Minute, false},
		{"another key", linkedKey + "x", good, 0, false},
		{"later expiry", linkedKey, with("expires", expires+"0"), 0, false},
		{"altered signature", linkedKey, with("signature", flipped+signature[1:]), 0, false},
		{"cut signature", linkedKey, with("signature", signature[:62]), 0, false},
		{"no signature", linkedKey, with("signature", ""), 0, false},
		{"signature twice", linkedKey, good + "&signature=" + signature, 0, false},
		{"expiry twice", linkedKey, "expires=99999999999&" + good, 0, false},
		{"nothing", linkedKey, "", 0, false},
		{"not a query", linkedKey, "%zz;&&", 0, false},
	} {
		b := setup(t)
		b.now = now.Add(tt.after)
		err := b.VerifyLink(tt.key, tt.query)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, artifacts.ErrBadLink) {
			t.Errorf("%s: got %v, want ok=%t", tt.name, err, tt.ok)
		}
	}
	other, err := artifacts.New(artifacts.Config{Blobs: b.blobs, Index: b.index})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.VerifyLink(linkedKey, good); !errors.Is(err, artifacts.ErrBadLink) {
		t.Errorf("link of another installation: got %v, want ErrBadLink", err)
	}
}

// FuzzVerifyLink looks for a query that passes without having been made by
// Link for that key.
func FuzzVerifyLink(f *testing.F) {
	store, err := artifacts.New(artifacts.Config{
		Blobs: artifactstest.NewBlobs(0), Index: artifactstest.NewIndex(),
		LinkKey: []byte("0123456789abcdef0123456789abcdef"),
		Now:     func() time.Time { return time.Unix(1_700_000_000, 0) },
	})
	if err != nil {
		f.Fatal(err)
	}
	good := store.Link(linkedKey, time.Time{})
	made, err := url.ParseQuery(good)
	if err != nil {
		f.Fatal(err)
	}
	for _, q := range []string{good, "", "expires=1&signature=", good + "&x=y", "expires=9&" + good, "%", "a;b"} {
		f.Add(linkedKey, q)
	}
	f.Add("x/0123456789abcdef-y", good)
	f.Fuzz(func(t *testing.T, key, query string) {
		if err := store.VerifyLink(key, query); err != nil {
			if !errors.Is(err, artifacts.ErrBadLink) {
				t.Errorf("got %v, want ErrBadLink", err)
			}
			return
		}
		got, err := url.ParseQuery(query)
		if err != nil || key != linkedKey || got.Get("expires") != made.Get("expires") {
			t.Errorf("key %q passes with %q", key, query)
		}
	})
}
