package bus

import "runtime"

// HoldWrites keeps the writer of subject's stream busy, so that writes pile
// up; waiting counts them, release lets the writer go on.
func HoldWrites(c *Conn, subject string) (waiting func() int, release func()) {
	g := c.groupOf(subject)
	g.mu.Lock()
	g.busy = true
	g.mu.Unlock()
	return func() int { g.mu.Lock(); defer g.mu.Unlock(); return len(g.waiting) }, g.next
}

// Groups reports whether writes to subject's stream are grouped.
func Groups(c *Conn, subject string) bool { return c.groupOf(subject) != nil }

// Batched reports whether a batch was stored in subject's stream. The writer
// answers before it notes how long it took, so this waits until it is idle.
func Batched(c *Conn, subject string) bool {
	g := c.groupOf(subject)
	for {
		g.mu.Lock()
		if !g.busy {
			defer g.mu.Unlock()
			return g.pace.batch > 0
		}
		g.mu.Unlock()
		runtime.Gosched()
	}
}
