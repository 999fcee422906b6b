package history

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"sync"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Receiver is an endpoint of webhooks that refuses the first request of about
// every second event, and remembers what it took. Each path is an endpoint of
// its own. Safe for concurrent use.
type Receiver struct {
	verifier *webhooks.Verifier

	mu    sync.Mutex // guards what follows
	seen  map[string]int
	taken map[string]bool
	bad   []string
}

// NewReceiver returns a receiver of deliveries signed by secret.
func NewReceiver(secret string) (*Receiver, error) {
	v, err := webhooks.NewVerifier(secret)
	return &Receiver{verifier: v, seen: map[string]int{}, taken: map[string]bool{}}, err
}

// ServeHTTP takes a delivery, or refuses it for once.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, webhooks.MaxBody))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	key := req.URL.Path + " " + req.Header.Get(webhooks.HeaderID)
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.verifier.Verify(req.Header, body); err != nil {
		r.bad = append(r.bad, key+": "+err.Error())
	}
	if r.seen[key]++; r.seen[key] == 1 && h.Sum32()%2 == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	r.taken[key] = true
}

// Check reads the bus at rest and returns every violation of
//
//	I8 each event that an endpoint wants is delivered to it at least once, signed and with the event's own id
//
// for the accepted jobs of l. wants maps a path to the names of the events its
// endpoint asked for.
func (r *Receiver) Check(ctx context.Context, js bus.JetStream, l *Log, wants map[string][]string) ([]Violation, error) {
	accepted := map[string]bool{}
	for _, id := range l.IDs() {
		accepted[id] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Violation
	for _, b := range r.bad {
		out = append(out, Violation{"I8", "", b})
	}
	known := map[string]bool{}
	err := js.Scan(ctx, bus.StreamEvents, []string{"evt.*.*.*.lc"}, 0, func(m bus.Message) error {
		ev, err := events.Decode(m.Header, m.Data)
		if err != nil {
			return err
		}
		for path, names := range wants {
			key := path + " " + ev.ID()
			known[key] = true
			if accepted[ev.Subject()] && webhooks.Wants(names, webhooks.EventOf(ev.Type())) && !r.taken[key] {
				out = append(out, Violation{"I8", ev.Subject(), fmt.Sprintf("%s %s not delivered to %s (%d requests)", ev.Type(), ev.ID(), path, r.seen[key])})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read lifecycle: %w", err)
	}
	for key := range r.taken {
		if !known[key] {
			out = append(out, Violation{"I8", "", "delivered what is no event: " + key})
		}
	}
	return out, nil
}
