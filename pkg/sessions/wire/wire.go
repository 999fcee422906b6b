// Package wire is the form in which a worker or scheduler talks to the agent
// inside a sidecar: paths, headers, JSON bodies and the frames that carry a
// running command. Both ends import it, so that they cannot drift apart; the
// protocol in words is docs/sessions.md.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Headers of every request to an agent.
const (
	HeaderGeneration = "Helmdeck-Generation" // decimal; another one is refused
	HeaderLease      = "Helmdeck-Lease"      // in answers: the lease the agent serves
)

// Paths of the agent's interface.
const (
	PathHealth   = "/health"
	PathRenew    = "/v1/renew"
	PathExec     = "/v1/exec"
	PathFile     = "/v1/files" // with ?path=
	PathBrowser  = "/v1/browser"
	PathDevTools = "/v1/devtools/browser/main" // websocket
	PathUpstream = "/v1/upstream"
	PathShutdown = "/v1/shutdown"
)

// Codes of Error.
const (
	CodeDenied     = "denied"           // wrong or missing token
	CodeGeneration = "wrong_generation" // the sidecar serves another generation
	CodeExpired    = "expired"          // nobody renewed the lease
	CodeBusy       = "busy"             // the browser has a client already
	CodeNotFound   = "not_found"        // no such file, program or engine
	CodeInvalid    = "invalid"          // malformed request, or a path that leaves the scratch folder
	CodeTooLarge   = "too_large"        // over a limit of bytes
	CodeFailed     = "failed"           // anything else
)

// Error is the JSON body of every answer that is not 2xx.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Health is the answer of PathHealth.
type Health struct {
	Lease      string `json:"lease"`
	Generation uint64 `json:"generation"`
	Expired    bool   `json:"expired"`
}

// Upstream is the body of PathUpstream: where the sidecar's own relay sends
// what its programs say to their proxy.
type Upstream struct {
	ProxyURL string `json:"proxy_url"` // "http://host:port"; empty: nowhere
}

// Exec is the payload of the first frame of an exec request.
type Exec struct {
	Argv      []string          `json:"argv"`
	Env       map[string]string `json:"env,omitempty"`
	Dir       string            `json:"dir,omitempty"`
	MaxOutput int64             `json:"max_output,omitempty"` // bytes per stream
	TimeoutMS int64             `json:"timeout_ms,omitempty"`
}

// Exit is the payload of the last frame of an exec answer.
type Exit struct {
	Code       int   `json:"code"`                // 128+n when ended by signal n
	Signal     int   `json:"signal,omitempty"`    // set when ended by a signal
	Truncated  bool  `json:"truncated,omitempty"` // output over the limit was dropped
	TimedOut   bool  `json:"timed_out,omitempty"` // killed at its timeout
	DurationMS int64 `json:"duration_ms"`
}

// Kind is the first byte of a frame.
type Kind byte

// Kinds of frames. A request is Command, then Stdin frames, then the end of
// the body. An answer is any number of Stdout, Stderr and Alive frames, then
// one Exit.
const (
	Command Kind = 'C' // JSON of Exec
	Stdin   Kind = 'I'
	Stdout  Kind = 'O'
	Stderr  Kind = 'E'
	Alive   Kind = 'A' // empty; so that a vanished reader is noticed
	Exited  Kind = 'X' // JSON of Exit
)

// MaxFrame bounds the payload of one frame in bytes. A command with its
// environment has to fit: Linux itself allows 2 MiB for both by default.
const MaxFrame = 2 << 20

// ErrFrame is a frame that is too long or cut off.
var ErrFrame = errors.New("malformed frame")

// WriteFrame writes one frame: kind, length as four bytes big-endian, payload.
func WriteFrame(w io.Writer, k Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("%w: %d bytes", ErrFrame, len(payload))
	}
	buf := make([]byte, 5+len(payload))
	buf[0] = byte(k)
	binary.BigEndian.PutUint32(buf[1:5], uint32(len(payload)))
	copy(buf[5:], payload)
	_, err := w.Write(buf)
	return err
}

// ReadFrame reads one frame. It returns io.EOF when the stream ended between
// two frames and ErrFrame when it ended within one.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil, fmt.Errorf("%w: cut off", ErrFrame)
		}
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrFrame, n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, fmt.Errorf("%w: cut off", ErrFrame)
	}
	return Kind(head[0]), payload, nil
}
