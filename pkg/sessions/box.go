package sessions

import "sync"

// box holds the newest record of one lease this process cares for.
type box struct {
	id      string
	changed chan struct{} // holds one token after a change

	mu    sync.Mutex // guards entry
	entry Entry
}

func (k *Keeper) open(id string) *box {
	b := &box{id: id, changed: make(chan struct{}, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.boxes[id] = b
	return b
}

func (k *Keeper) close(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.boxes, id)
}

// put stores e unless something newer is there.
func (b *box) put(e Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Revision <= b.entry.Revision {
		return
	}
	b.entry = e
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

func (b *box) last() Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry
}
