package bus

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// replies hands the answers of one connection's requests out. It does what
// the library's own multiplexer does, without a context and a random token
// for each request: every stored message is a request.
type replies struct {
	prefix string // "<inbox>.": the token of a request follows

	mu      sync.Mutex // guards the fields below
	waiting map[uint64]chan *nats.Msg
	next    uint64
}

// listenForReplies subscribes once; the subscription survives reconnects.
func listenForReplies(nc *nats.Conn) (*replies, error) {
	r := &replies{prefix: nc.NewInbox() + ".", waiting: map[uint64]chan *nats.Msg{}}
	sub, err := nc.Subscribe(r.prefix+"*", r.receive)
	if err != nil {
		return nil, err
	}
	// Answers are small and each has a reader: a limit could only lose some.
	return r, sub.SetPendingLimits(-1, -1)
}

// open returns the reply subject of one request and where its answer arrives.
func (r *replies) open() (token uint64, subject string, answer <-chan *nats.Msg) {
	ch := make(chan *nats.Msg, 1)
	r.mu.Lock()
	r.next++
	token = r.next
	r.waiting[token] = ch
	r.mu.Unlock()
	return token, r.prefix + strconv.FormatUint(token, 36), ch
}

// drop forgets a request that nobody waits for any more.
func (r *replies) drop(token uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, token)
}

func (r *replies) receive(m *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, r.prefix), 36, 64)
	if err != nil {
		return // not of ours
	}
	r.mu.Lock()
	ch := r.waiting[token]
	delete(r.waiting, token)
	r.mu.Unlock()
	if ch != nil {
		ch <- m
	}
}

// noResponders reports whether m is the server's word that nobody listens on
// the subject of the request.
func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}
