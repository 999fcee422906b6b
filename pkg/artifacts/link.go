package artifacts

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// DefaultLinkTTL is how long a download link holds.
const DefaultLinkTTL = 15 * time.Minute

// The parameters of a signed link.
const (
	paramExpires   = "expires"   // unix seconds
	paramSignature = "signature" // hex HMAC-SHA256
)

// Link returns the query string (without "?") that lets whoever has it
// download key until expires, which is rounded down to seconds; zero means
// DefaultLinkTTL from now. It does not look whether key exists.
func (s *Store) Link(key string, expires time.Time) string {
	if expires.IsZero() {
		expires = s.cfg.Now().Add(DefaultLinkTTL)
	}
	at := strconv.FormatInt(expires.Unix(), 10)
	return url.Values{
		paramExpires:   {at},
		paramSignature: {hex.EncodeToString(s.sign(key, at))},
	}.Encode()
}

// DownloadPath is where the API serves artifacts, followed by their key.
const DownloadPath = "/api/v1/artifacts/download/"

// URL returns a link that downloads ref for DefaultLinkTTL without a token: the
// direct one where the store gives one, else one to the API at base, which may
// be empty ("https://deck.example"). ref needs Key, Name and ContentType.
func (s *Store) URL(ctx context.Context, base string, ref Ref) string {
	if direct := s.DirectLink(ctx, ref); direct != "" {
		return direct
	}
	segments := strings.Split(ref.Key, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return base + DownloadPath + strings.Join(segments, "/") + "?" + s.Link(ref.Key, time.Time{})
}

// DirectLink returns a link to the bytes of ref that holds for DefaultLinkTTL
// and does not pass through us; empty when the store has none to give, and Link
// must do. Images a browser may show come inline, all else as a download. ref
// needs Key, Name and ContentType; whether it exists is not looked at.
func (s *Store) DirectLink(ctx context.Context, ref Ref) string {
	linker, ok := s.cfg.Blobs.(Linker)
	if !ok || !validKey(ref.Key) {
		return ""
	}
	link, err := linker.DirectLink(ctx, ref.Key, DefaultLinkTTL, LinkHeaders{
		ContentType: ref.ContentType, Disposition: ref.Disposition(),
	})
	if err != nil {
		// The link through us serves as well.
		s.cfg.Log.Debug().Err(err).Str("artifact", ref.Key).Msg("no direct link")
		return ""
	}
	return link
}

// VerifyLink returns nil when rawQuery, the query string of a request for
// key, holds a link of Link that has not expired, and ErrBadLink otherwise.
// Other parameters are of no account; repeated ones of ours are refused.
func (s *Store) VerifyLink(key, rawQuery string) error {
	query, err := url.ParseQuery(rawQuery)
	if err != nil || len(query[paramExpires]) != 1 || len(query[paramSignature]) != 1 {
		return ErrBadLink
	}
	at := query.Get(paramExpires)
	got, err := hex.DecodeString(query.Get(paramSignature))
	if err != nil || !hmac.Equal(got, s.sign(key, at)) {
		return ErrBadLink
	}
	// Only signed, so only what Link wrote, gets here.
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !s.cfg.Now().Before(time.Unix(seconds, 0)) {
		return ErrBadLink
	}
	return nil
}

// sign covers a label, the expiry and the key. The expiry holds no newline
// where Link wrote it, so no two pairs sign the same text.
func (s *Store) sign(key, expires string) []byte {
	mac := hmac.New(sha256.New, s.cfg.LinkKey)
	mac.Write([]byte("helmdeck artifact link v1\n" + expires + "\n" + key))
	return mac.Sum(nil)
}
