package webhooks

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of Standard Webhooks 1.0.
const (
	HeaderID        = "Webhook-Id"        // the event, the same at every attempt
	HeaderTimestamp = "Webhook-Timestamp" // of the attempt, seconds since 1970
	HeaderSignature = "Webhook-Signature" // "v1,<base64>", several with spaces between
)

// Headers that receivers made for older versions read.
const (
	HeaderEvent           = "X-Helmdeck-Event"            // pack.complete, pack.failed, …
	HeaderJobID           = "X-Helmdeck-Job-Id"           // the job
	HeaderTaskID          = "X-Helmdeck-Task-Id"          // "pack_" and the job
	HeaderDeliveryAttempt = "X-Helmdeck-Delivery-Attempt" // 1 for the first
	HeaderLegacySignature = "X-Helmdeck-Signature"        // "sha256=" and hex, of the body alone
)

const (
	secretPrefix = "whsec_"
	// Keys of Standard Webhooks have 24 to 64 bytes.
	minKey, maxKey = 24, 64
	newKey         = 32
	signatureV1    = "v1,"
)

// Secret is a key shared by sender and receiver. It prints as [redacted];
// Reveal returns its text.
type Secret struct {
	text string
	key  []byte
}

// NewSecret makes a random one.
func NewSecret() Secret {
	key := make([]byte, newKey)
	_, _ = rand.Read(key) // never fails
	return Secret{text: secretPrefix + base64.StdEncoding.EncodeToString(key), key: key}
}

// ParseSecret reads "whsec_" and the base64 of 24 to 64 bytes. Any other text
// of 1 to 256 bytes is a key by its own bytes, as older receivers have it.
func ParseSecret(text string) (Secret, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		if text == "" || len(text) > MaxSecret {
			return Secret{}, fmt.Errorf("must be %s and base64 of %d to %d bytes, or a text of 1 to %d bytes", secretPrefix, minKey, maxKey, MaxSecret)
		}
		return Secret{text: text, key: []byte(text)}, nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		if key, err = base64.RawStdEncoding.DecodeString(encoded); err != nil {
			return Secret{}, fmt.Errorf("must hold base64 after %s", secretPrefix)
		}
	}
	if len(key) < minKey || len(key) > maxKey {
		return Secret{}, fmt.Errorf("must hold base64 of %d to %d bytes after %s, got %d bytes", minKey, maxKey, secretPrefix, len(key))
	}
	return Secret{text: text, key: key}, nil
}

// standard reports whether the secret has the form of Standard Webhooks.
func (s Secret) standard() bool { return strings.HasPrefix(s.text, secretPrefix) }

// Reveal returns the secret as it is written down.
func (s Secret) Reveal() string { return s.text }

// String hides the secret.
func (Secret) String() string { return "[redacted]" }

// GoString hides the secret under %#v as well.
func (Secret) GoString() string { return "webhooks.Secret{[redacted]}" }

// MarshalJSON hides the secret: it is written down by Reveal or not at all.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"[redacted]"`), nil }

// Sign sets the headers that identify and sign an attempt: id, time and, when
// there are secrets, one signature of each, and for older receivers one of the
// body by the first. During a rotation the newest secret comes first.
func Sign(h http.Header, id string, at time.Time, body []byte, secrets ...Secret) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, timestamp)
	if len(secrets) == 0 {
		return
	}
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = signatureV1 + base64.StdEncoding.EncodeToString(s.sum(id, timestamp, body))
	}
	h.Set(HeaderSignature, strings.Join(signatures, " "))
	// Older receivers take the secret's text for the key, whatever it looks like.
	mac := hmac.New(sha256.New, []byte(secrets[0].text))
	mac.Write(body)
	h.Set(HeaderLegacySignature, "sha256="+hex.EncodeToString(mac.Sum(nil)))
}

func (s Secret) sum(id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// Errors of Verify. A receiver answers all of them alike, with 401 or 400.
var (
	// ErrHeaders: a header of Standard Webhooks is missing or malformed.
	ErrHeaders = errors.New("webhook headers missing or malformed")
	// ErrStale: the attempt was made too long ago, or in the future.
	ErrStale = errors.New("webhook timestamp outside the tolerance")
	// ErrSignature: no signature is by one of the secrets.
	ErrSignature = errors.New("webhook signature does not match")
)

// Tolerance is how far the clocks of sender and receiver may be apart, unless
// a Verifier says otherwise.
const Tolerance = 5 * time.Minute

// Bounds of what Verify looks at: an attacker chooses the headers.
const (
	maxHeader     = 4096 // bytes
	maxSignatures = 16
)

// Verifier checks deliveries on the side of the receiver. Its fields may be
// changed before the first Verify; it is safe for concurrent use after.
type Verifier struct {
	// Tolerance bounds the age of an attempt; NewVerifier sets the default.
	Tolerance time.Duration
	// Now is the clock; NewVerifier sets time.Now.
	Now     func() time.Time
	secrets []Secret
}

// NewVerifier returns a Verifier that accepts a signature by any of the
// secrets, of which there are several during a rotation.
func NewVerifier(secrets ...string) (*Verifier, error) {
	v := &Verifier{Tolerance: Tolerance, Now: time.Now}
	if len(secrets) == 0 {
		return nil, errors.New("verify webhooks: no secret")
	}
	for _, text := range secrets {
		s, err := ParseSecret(text)
		if err != nil {
			return nil, fmt.Errorf("verify webhooks: secret %w", err)
		}
		v.secrets = append(v.secrets, s)
	}
	return v, nil
}

// Verify returns nil when body, exactly as it was received, and the headers
// were signed by one of the secrets within the tolerance. Its time does not
// tell how much of a signature was right. Remember the id in webhook-id: an
// event may be delivered more than once.
func (v *Verifier) Verify(h http.Header, body []byte) error {
	id, timestamp, header := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	if id == "" || len(id) > maxHeader || len(header) > maxHeader {
		return ErrHeaders
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != timestamp {
		return ErrHeaders
	}
	now, tolerance := v.Now().Unix(), int64(v.Tolerance/time.Second)
	// Compared this way, no timestamp can make it overflow.
	if seconds < now-tolerance || seconds > now+tolerance {
		return ErrStale
	}
	given := strings.Fields(header)
	if len(given) == 0 || len(given) > maxSignatures {
		return ErrHeaders
	}
	match := false
	for _, s := range v.secrets {
		want := s.sum(id, timestamp, body)
		for _, text := range given {
			encoded, ok := strings.CutPrefix(text, signatureV1)
			if !ok {
				continue // a version of the scheme that is not known here
			}
			got, err := base64.StdEncoding.DecodeString(encoded)
			if err == nil && hmac.Equal(got, want) {
				match = true
			}
		}
	}
	if !match {
		return ErrSignature
	}
	return nil
}
