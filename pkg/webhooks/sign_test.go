package webhooks_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

func parse(t testing.TB, text string) webhooks.Secret {
	t.Helper()
	s, err := webhooks.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// key is a secret of n bytes.
func key(n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n)))
}

// TestSignKnownVector is the example of the Standard Webhooks libraries.
func TestSignKnownVector(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	webhooks.Sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`), parse(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
	if got, want := h.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if h.Get("webhook-id") != "msg_p5jXN8AQM9LWM0D4loKWxJek" || h.Get("webhook-timestamp") != "1614265330" {
		t.Errorf("got %v", h)
	}
}

// TestOlderSignature is over the body alone, keyed by the text of the newest
// secret.
func TestOlderSignature(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	webhooks.Sign(h, "1", time.Now(), []byte("body"), parse(t, "new"), parse(t, "old"))
	mac := hmac.New(sha256.New, []byte("new"))
	mac.Write([]byte("body"))
	if got, want := h.Get("X-Helmdeck-Signature"), "sha256="+hex.EncodeToString(mac.Sum(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := len(strings.Fields(h.Get("Webhook-Signature"))); got != 2 {
		t.Errorf("%d signatures in a rotation, want 2", got)
	}
	h = http.Header{}
	webhooks.Sign(h, "1", time.Now(), []byte("body"))
	if h.Get("Webhook-Signature")+h.Get("X-Helmdeck-Signature") != "" || h.Get("Webhook-Id") != "1" {
		t.Errorf("without a secret: %v", h)
	}
}

func TestParseSecret(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		key(23): false, key(24): true, key(64): true, key(65): false,
		"whsec_": false, "whsec_%%%": false, strings.TrimRight(key(25), "="): true,
		"": false, "x": true, strings.Repeat("x", 256): true, strings.Repeat("x", 257): false,
	} {
		if _, err := webhooks.ParseSecret(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	a, b := webhooks.NewSecret(), webhooks.NewSecret()
	if a.Reveal() == b.Reveal() || !strings.HasPrefix(a.Reveal(), "whsec_") {
		t.Errorf("got %s and %s", a.Reveal(), b.Reveal())
	}
	asJSON, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(a), fmt.Sprintf("%v %+v %#v %s", a, a, a, a), string(asJSON), fmt.Sprint(struct{ S webhooks.Secret }{a})} {
		if strings.Contains(shown, a.Reveal()[6:]) {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	const body = `{"a":1}`
	now := time.Unix(1_700_000_000, 0)
	first, second := key(24), key(32)
	signed := func(at time.Time, secrets ...string) http.Header {
		h := http.Header{}
		var all []webhooks.Secret
		for _, s := range secrets {
			all = append(all, parse(t, s))
		}
		webhooks.Sign(h, "evt-1", at, []byte(body), all...)
		return h
	}
	change := func(h http.Header, name, value string) http.Header {
		h.Set(name, value)
		return h
	}
	stamped := func(n int64) http.Header {
		return change(signed(now, first), "Webhook-Timestamp", strconv.FormatInt(n, 10))
	}
	good := signed(now, first).Get("Webhook-Signature")
	for name, tt := range map[string]struct {
		header http.Header
		body   string
		want   error
	}{
		"good":                   {signed(now, first), body, nil},
		"rotation, new":          {signed(now, second, first), body, nil},
		"at the edge, late":      {signed(now.Add(-5*time.Minute), first), body, nil},
		"over the edge, late":    {signed(now.Add(-5*time.Minute-time.Second), first), body, webhooks.ErrStale},
		"at the edge, early":     {signed(now.Add(5*time.Minute), first), body, nil},
		"over the edge, early":   {signed(now.Add(5*time.Minute+time.Second), first), body, webhooks.ErrStale},
		"another body":           {signed(now, first), body + " ", webhooks.ErrSignature},
		"another secret":         {signed(now, second), body, webhooks.ErrSignature},
		"another id":             {change(signed(now, first), "Webhook-Id", "evt-2"), body, webhooks.ErrSignature},
		"no id":                  {change(signed(now, first), "Webhook-Id", ""), body, webhooks.ErrHeaders},
		"no headers":             {http.Header{}, body, webhooks.ErrHeaders},
		"another time":           {stamped(now.Unix() + 1), body, webhooks.ErrSignature},
		"largest time":           {stamped(math.MaxInt64), body, webhooks.ErrStale},
		"smallest time":          {stamped(math.MinInt64), body, webhooks.ErrStale},
		"time with a sign":       {change(signed(now, first), "Webhook-Timestamp", "+1700000000"), body, webhooks.ErrHeaders},
		"time with a zero":       {change(signed(now, first), "Webhook-Timestamp", "01700000000"), body, webhooks.ErrHeaders},
		"unsigned":               {change(signed(now, first), "Webhook-Signature", " "), body, webhooks.ErrHeaders},
		"unknown version beside": {change(signed(now, first), "Webhook-Signature", "v9,abc "+good), body, nil},
		"unknown version alone":  {change(signed(now, first), "Webhook-Signature", "v9"+good[2:]), body, webhooks.ErrSignature},
		"no base64":              {change(signed(now, first), "Webhook-Signature", "v1,%%%"), body, webhooks.ErrSignature},
		"cut short":              {change(signed(now, first), "Webhook-Signature", good[:20]), body, webhooks.ErrSignature},
		"sixteen":                {change(signed(now, first), "Webhook-Signature", strings.Repeat("v1,AAAA ", 15)+good), body, nil},
		"seventeen":              {change(signed(now, first), "Webhook-Signature", strings.Repeat("v1,AAAA ", 16)+good), body, webhooks.ErrHeaders},
		"too long":               {change(signed(now, first), "Webhook-Signature", good+strings.Repeat(" ", 4096)), body, webhooks.ErrHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, err := webhooks.NewVerifier(first)
			if err != nil {
				t.Fatal(err)
			}
			v.Now = func() time.Time { return now }
			if err := v.Verify(tt.header, []byte(tt.body)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if _, err := webhooks.NewVerifier(); err == nil {
		t.Error("a verifier without secrets")
	}
	if _, err := webhooks.NewVerifier(key(8)); err == nil {
		t.Error("a verifier with a short secret")
	}
}

// FuzzVerify: whatever the headers, Verify neither panics nor accepts what was
// not signed with the secret.
func FuzzVerify(f *testing.F) {
	secret := parse(f, key(32))
	now := time.Unix(1_700_000_000, 0)
	h := http.Header{}
	webhooks.Sign(h, "evt-1", now, []byte("{}"), secret)
	f.Add(h.Get("Webhook-Id"), h.Get("Webhook-Timestamp"), h.Get("Webhook-Signature"), []byte("{}"))
	f.Add("", "", "", []byte(nil))
	f.Add("a.b", "-9223372036854775808", "v1,", []byte("x"))
	f.Add("a", "9223372036854775807", "v1,=== v1a,AA v2", []byte("x"))
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		v, err := webhooks.NewVerifier(secret.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		v.Now = func() time.Time { return now }
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {signature}}
		if v.Verify(h, body) != nil {
			return
		}
		seconds, err := strconv.ParseInt(timestamp, 10, 64)
		if err != nil {
			t.Fatalf("accepted the time %q", timestamp)
		}
		want := http.Header{}
		webhooks.Sign(want, id, time.Unix(seconds, 0), body, secret)
		encoded := strings.TrimPrefix(want.Get("Webhook-Signature"), "v1,")
		for _, got := range strings.Fields(signature) {
			// Base64 has several texts for one value, of which the last character
			// carries bits of no account.
			if a, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(got, "v1,")); err == nil {
				if b, err := base64.StdEncoding.DecodeString(encoded); err == nil && hmac.Equal(a, b) {
					return
				}
			}
		}
		t.Fatalf("accepted %q of %q at %q", signature, id, timestamp)
	})
}

func TestSeal(t *testing.T) {
	t.Parallel()
	one, err := webhooks.NewSealer([]byte(strings.Repeat("1", 32)))
	if err != nil {
		t.Fatal(err)
	}
	other, err := webhooks.NewSealer([]byte(strings.Repeat("2", 32)))
	if err != nil {
		t.Fatal(err)
	}
	s := webhooks.NewSecret()
	sealed := one.Seal(s, webhooks.EndpointPlace("wh_a"))
	if again := one.Seal(s, webhooks.EndpointPlace("wh_a")); again == sealed {
		t.Error("sealed twice alike")
	}
	if got, err := one.Open(sealed, webhooks.EndpointPlace("wh_a")); err != nil || got.Reveal() != s.Reveal() {
		t.Errorf("open: %v", err)
	}
	for name, open := range map[string]func() (webhooks.Secret, error){
		"another place": func() (webhooks.Secret, error) { return one.Open(sealed, webhooks.EndpointPlace("wh_b")) },
		"another key":   func() (webhooks.Secret, error) { return other.Open(sealed, webhooks.EndpointPlace("wh_a")) },
		"damaged": func() (webhooks.Secret, error) {
			return one.Open(sealed[:len(sealed)-2]+"AA", webhooks.EndpointPlace("wh_a"))
		},
		"no base64":  func() (webhooks.Secret, error) { return one.Open(sealed+"%", webhooks.EndpointPlace("wh_a")) },
		"not sealed": func() (webhooks.Secret, error) { return one.Open(s.Reveal(), webhooks.EndpointPlace("wh_a")) },
		"empty":      func() (webhooks.Secret, error) { return one.Open("", "") },
	} {
		if got, err := open(); err == nil {
			t.Errorf("%s: opened %v", name, got)
		} else if strings.Contains(err.Error(), s.Reveal()) {
			t.Errorf("%s: the error shows the secret", name)
		}
	}
	if _, err := webhooks.NewSealer(make([]byte, 16)); err == nil {
		t.Error("a short key")
	}
}
