package bustest

import (
	"io"
	"net"
	"sync"
	"time"
)

// link passes TCP connections on to one address until it is cut.
type link struct {
	ln     net.Listener
	target string

	mu    sync.Mutex // guards what follows
	down  bool
	conns map[net.Conn]bool
}

func newLink(target string) (*link, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{ln: ln, target: target, conns: map[net.Conn]bool{}}
	go l.serve()
	return l, nil
}

func (l *link) addr() string { return l.ln.Addr().String() }

func (l *link) serve() {
	for {
		in, err := l.ln.Accept()
		if err != nil {
			return
		}
		go l.pass(in)
	}
}

func (l *link) pass(in net.Conn) {
	defer func() { _ = in.Close() }() // of no interest once the link is over
	if !l.keep(in) {
		return
	}
	defer l.drop(in)
	out, err := net.DialTimeout("tcp", l.target, 2*time.Second)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	if !l.keep(out) {
		return
	}
	defer l.drop(out)
	go func() {
		_, _ = io.Copy(out, in) // either end closing ends both
		_ = out.Close()
		_ = in.Close()
	}()
	_, _ = io.Copy(in, out)
}

func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down {
		l.conns[c] = true
	}
	return !l.down
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// cut ends every connection and refuses new ones.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.conns {
		_ = c.Close()
	}
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

func (l *link) close() {
	_ = l.ln.Close()
	l.cut()
}
