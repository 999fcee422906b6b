package auditstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
)

const (
	// sealRecords and sealBytes bound a batch of the sealer.
	sealRecords = 512
	sealBytes   = 512 << 10
	// pollEvery is how often an idle sealer looks for events of other
	// processes.
	pollEvery = 500 * time.Millisecond
	// deferFor is how long a sealer that lost leaves the queue to the winner.
	deferFor = 2 * time.Second
	// anchorEvery is how old the anchor of the newest record may get, and
	// logEvery how often it is logged, for those who keep logs elsewhere.
	anchorEvery = 2 * time.Second
	logEvery    = time.Hour
	// purgeEvery is how long sealed events stay in the queue.
	purgeEvery = time.Second
	retryIn    = time.Second
	stepLimit  = 30 * time.Second
	// Sealing can wait, jobs and calls cannot: a sealer rests for restFactor
	// times as long as a batch took, so that it has a quarter of a processor at
	// most, unless the queue holds more than hurryBytes.
	// A batch that was not full is followed by a rest of gather at least, for a
	// batch costs the server as much as many records.
	restFactor = 3
	gather     = 200 * time.Millisecond
	hurryBytes = 128 << 20
	hurryLook  = time.Second
)

// Sealer chains the events of the queue. Every API replica runs one.
type Sealer struct {
	JS bus.JetStream
	// Secret is the key of the anchors' codes.
	Secret []byte
	// Wake, when something comes, ends the pause of an idle sealer; may be nil.
	Wake <-chan struct{}
	// Sealed observes how many records were appended; may be nil.
	Sealed func(n int)
	Now    func() time.Time // nil: time.Now
	Log    zerolog.Logger

	head    *head // nil: not known
	ends    ends
	lost    time.Time // when another sealer was faster
	waiting struct {  // the queue's oldest event, while the queue is left to others
		seq   uint64
		since time.Time
	}
	looked                   time.Time // when the size of the queue was looked at
	hurried                  bool      // it was too large
	anchored, logged, purged time.Time
	anchorID, purgedTo       uint64
}

// head is the end of the chain.
type head struct {
	id       uint64
	hash     string
	sealedAt time.Time
	progress
}

// errLost says that another sealer was faster.
var errLost = errors.New("another sealer was faster")

// Run seals until ctx ends.
func (s *Sealer) Run(ctx context.Context) error {
	if s.Now == nil {
		s.Now = time.Now
	}
	idle := time.NewTimer(0)
	defer idle.Stop()
	for ctx.Err() == nil {
		pause := pollEvery
		step, cancel := context.WithTimeout(ctx, stepLimit)
		began := time.Now()
		n, err := s.step(step)
		if err == nil && n > 0 {
			pause = s.pause(step, n, time.Since(began))
		}
		cancel()
		switch {
		case err == nil && n > 0:
			s.sleep(ctx, pause)
			continue
		case errors.Is(err, errLost):
			s.lost = s.Now()
		case err != nil && ctx.Err() == nil:
			s.head = nil // whether something was written is not known
			s.Log.Warn().Err(err).Msg("audit events not sealed, trying again")
			pause = retryIn
		}
		idle.Reset(pause)
		select {
		case <-ctx.Done():
		case <-s.Wake:
		case <-idle.C:
		}
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), retryIn)
	defer cancel()
	_ = s.anchor(bye, true) // the next sealer writes it otherwise
	return nil
}

// pause is how long the sealer rests after a batch of n that took so long.
func (s *Sealer) pause(ctx context.Context, n int, took time.Duration) time.Duration {
	if now := s.Now(); now.Sub(s.looked) >= hurryLook {
		s.looked = now
		if st, err := s.JS.Stream(ctx, bus.StreamTrailIn, ""); err == nil {
			s.hurried = st.Bytes > hurryBytes
		}
	}
	if s.hurried {
		return 0
	}
	rest := restFactor * took
	if n < sealRecords/2 {
		rest = max(rest, gather)
	}
	return min(rest, retryIn)
}

func (s *Sealer) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// step seals one batch and returns how many records it has.
func (s *Sealer) step(ctx context.Context) (int, error) {
	if s.head == nil {
		if err := s.load(ctx); err != nil {
			return 0, err
		}
	}
	in, err := s.read(ctx)
	if err != nil {
		return 0, err
	}
	if in.last == s.head.In {
		return 0, s.rest(ctx)
	}
	if s.leaves(in) {
		s.head = nil // it moves without us
		return 0, nil
	}
	events, err := s.choose(ctx, in)
	if err != nil {
		return 0, err
	}
	next := s.head.after(in, s.Now())
	if len(events) > 0 {
		if err := s.append(ctx, events, next); err != nil {
			return 0, err
		}
		s.ends.add(events)
		failpoint.Hit(failpoint.AuditAfterSeal)
		if s.Sealed != nil {
			s.Sealed(len(events))
		}
	}
	s.head.progress = next
	return max(len(events), 1), s.settle(ctx, false)
}

// rest does what is to be done when nothing waits.
func (s *Sealer) rest(ctx context.Context) error {
	s.waiting.seq = 0
	return s.settle(ctx, true)
}

// settle writes the anchor and empties the queue of what is sealed.
func (s *Sealer) settle(ctx context.Context, idle bool) error {
	if err := s.anchor(ctx, false); err != nil {
		return err
	}
	if s.head.In == s.purgedTo || !idle && s.Now().Sub(s.purged) < purgeEvery {
		return nil
	}
	if err := s.JS.Purge(ctx, bus.StreamTrailIn, everyBatch, s.head.In+1); err != nil {
		return err
	}
	failpoint.Hit(failpoint.AuditAfterPurge)
	s.purged, s.purgedTo = s.Now(), s.head.In
	return nil
}

// leaves reports whether the queue is left to the sealer that was faster last
// time: unless what waits does so for too long.
func (s *Sealer) leaves(in incoming) bool {
	if s.lost.IsZero() {
		return false
	}
	if s.waiting.seq != in.first {
		s.waiting.seq, s.waiting.since = in.first, s.Now()
	}
	if s.Now().Sub(s.waiting.since) < deferFor {
		return true
	}
	s.lost = time.Time{}
	return false
}

// load reads where the chain ends.
func (s *Sealer) load(ctx context.Context) error {
	anchors := anchors{s.JS, s.Secret}
	known, anchored, err := anchors.get(ctx, keyHead)
	if errors.Is(err, errForged) {
		s.Log.Error().Msg("the anchor of the audit trail was not written by this installation; see docs/audit.md")
	} else if err != nil {
		return err
	}
	state, err := s.JS.Stream(ctx, bus.StreamTrail, "")
	if err != nil {
		return err
	}
	h := &head{id: state.Last, hash: audit.NoHash, progress: progress{Sources: map[string]lastBatch{}}}
	m, err := s.JS.Last(ctx, bus.StreamTrail, everyRecord, true)
	switch {
	case errors.Is(err, bus.ErrNoMessage):
		if anchored && known.ID == h.id {
			h.hash, h.sealedAt = known.Hash, known.At
		}
	case err != nil:
		return err
	default:
		r, err := audit.Open(m.Data)
		if err != nil {
			s.Log.Error().Err(err).Uint64("id", m.Sequence).Msg("the newest audit record was changed; see docs/audit.md")
		}
		// More than the last message may be gone; the ids show it.
		h.id, h.hash, h.sealedAt = max(m.Sequence, state.Last), r.Hash, r.SealedAt
		if v := m.Header[headerHead]; len(v) > 0 {
			if err := json.Unmarshal([]byte(v[0]), &h.progress); err != nil {
				return fmt.Errorf("read progress of record %d: %w", m.Sequence, err)
			}
		}
	}
	if h.Sources == nil {
		h.Sources = map[string]lastBatch{}
	}
	if anchored {
		if err := s.compare(ctx, anchors, known, h); err != nil {
			return err
		}
	}
	in, err := s.JS.Stream(ctx, bus.StreamTrailIn, "")
	if err != nil {
		return err
	}
	if in.Last < h.In { // made anew: its sequences begin again
		h.In = 0
	}
	s.head = h
	return nil
}

// compare notes for good when the trail lacks what was there.
func (s *Sealer) compare(ctx context.Context, anchors anchors, known anchor, h *head) error {
	if known.ID <= h.id {
		m, err := s.JS.Next(ctx, bus.StreamTrail, everyRecord, known.ID)
		if errors.Is(err, bus.ErrNoMessage) || err == nil && m.Sequence != known.ID {
			return nil // gone with age, or removed: a check of the trail tells
		}
		if err != nil {
			return err
		}
		if r, err := audit.Open(m.Data); err == nil && r.Hash == known.Hash {
			return nil
		}
	}
	s.Log.Error().Uint64("anchored", known.ID).Uint64("found", h.id).
		Msg("the audit trail lacks records it had, or has others in their place: it was cut, or an older backup was restored")
	known.Found = h.id
	return anchors.put(ctx, keyCut+strconv.FormatUint(known.ID, 10), known)
}

// incoming is a stretch of the queue.
type incoming struct {
	batches     []audit.Batch
	first, last uint64 // sequences
}

var errEnough = errors.New("enough")

// read reads what waits, at most as much as one batch of the trail holds.
func (s *Sealer) read(ctx context.Context) (incoming, error) {
	in := incoming{last: s.head.In}
	records, size := 0, 0
	err := s.JS.Scan(ctx, bus.StreamTrailIn, []string{everyBatch}, s.head.In+1, func(m bus.Message) error {
		var b audit.Batch
		if err := json.Unmarshal(m.Data, &b); err != nil || len(b.Events) > sealRecords {
			// It would come for ever. No writer of ours sends such a one.
			s.Log.Error().Err(err).Uint64("sequence", m.Sequence).Int("events", len(b.Events)).Msg("audit batch not understood, passed over")
			b = audit.Batch{}
		}
		records, size = records+len(b.Events), size+len(m.Data)
		if in.first > 0 && (records > sealRecords || size > sealBytes) {
			return errEnough
		}
		if in.first == 0 {
			in.first = m.Sequence
		}
		in.batches, in.last = append(in.batches, b), m.Sequence
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return in, err
}

// choose returns the events that were not sealed before.
func (s *Sealer) choose(ctx context.Context, in incoming) ([]audit.Pending, error) {
	sealed := map[string]uint64{}
	var events []audit.Pending
	for _, b := range in.batches {
		if b.N <= max(sealed[b.Source], s.head.Sources[b.Source].N) {
			continue
		}
		sealed[b.Source] = b.N
		for _, e := range b.Events {
			if !audit.Kind(e.EventType).Known() {
				s.Log.Error().Str("event_type", e.EventType).Msg("audit event of an unknown kind, passed over")
				continue
			}
			events = append(events, e)
		}
	}
	return s.ends.choose(ctx, s.JS, events)
}

// after is the progress when in is sealed.
func (h *head) after(in incoming, now time.Time) progress {
	p := progress{In: in.last, Sources: maps.Clone(h.Sources)}
	for _, b := range in.batches {
		if b.Source != "" && b.N > p.Sources[b.Source].N {
			p.Sources[b.Source] = lastBatch{b.N, now.Unix()}
		}
	}
	oldest := now.Add(-sourceAge).Unix()
	maps.DeleteFunc(p.Sources, func(_ string, l lastBatch) bool { return l.At < oldest })
	if more := len(p.Sources) - maxSources; more > 0 {
		names := slices.Collect(maps.Keys(p.Sources))
		slices.SortFunc(names, func(a, b string) int { return int(p.Sources[a].At - p.Sources[b].At) })
		for _, name := range names[:more] {
			delete(p.Sources, name)
		}
	}
	return p
}

// append seals events behind the head and moves the head.
func (s *Sealer) append(ctx context.Context, events []audit.Pending, next progress) error {
	now := s.Now()
	if now.Before(s.head.sealedAt) {
		now = s.head.sealedAt // a chain does not go back in time
	}
	if err := s.endDay(ctx, now); err != nil {
		return err
	}
	header, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode progress: %w", err)
	}
	h := head{id: s.head.id, hash: s.head.hash, sealedAt: now}
	out := make([]bus.Outgoing, len(events))
	for i, e := range events {
		r, stored, err := audit.Seal(e, h.id+1, h.hash, now)
		if err != nil {
			return err
		}
		h.id, h.hash = r.ID, r.Hash
		out[i] = bus.Outgoing{Subject: filed(e, now), Data: stored}
	}
	expect := s.head.id
	out[0].ExpectStream = &expect
	out[len(out)-1].Header = map[string][]string{headerHead: {string(header)}}
	last, err := s.JS.PublishBatch(ctx, out)
	if errors.Is(err, bus.ErrWrongSequence) {
		s.head = nil
		return errLost
	}
	if err != nil {
		return err
	}
	if last != h.id {
		return fmt.Errorf("record %d was stored as %d", h.id, last)
	}
	*s.head = h
	return nil
}

// endDay anchors the last record of a day before the first one of the next.
func (s *Sealer) endDay(ctx context.Context, now time.Time) error {
	h := s.head
	day := h.sealedAt.UTC().Format(time.DateOnly)
	if h.sealedAt.IsZero() || day == now.UTC().Format(time.DateOnly) {
		return nil
	}
	a := anchor{Day: day, ID: h.id, Hash: h.hash, At: h.sealedAt}
	s.Log.Info().Str("day", day).Uint64("id", a.ID).Str("hash", a.Hash).Msg("audit trail: end of the day")
	return anchors{s.JS, s.Secret}.put(ctx, keyDay+day, a)
}

// anchor notes the newest record apart from the trail.
func (s *Sealer) anchor(ctx context.Context, now bool) error {
	h := s.head
	if h == nil || h.id == s.anchorID || h.sealedAt.IsZero() || !now && s.Now().Sub(s.anchored) < anchorEvery {
		return nil
	}
	a := anchor{Day: h.sealedAt.UTC().Format(time.DateOnly), ID: h.id, Hash: h.hash, At: h.sealedAt}
	if err := (anchors{s.JS, s.Secret}).put(ctx, keyHead, a); err != nil {
		return err
	}
	failpoint.Hit(failpoint.AuditAfterAnchor)
	s.anchored, s.anchorID = s.Now(), h.id
	if s.Now().Sub(s.logged) >= logEvery {
		s.logged = s.Now()
		s.Log.Info().Uint64("id", a.ID).Str("hash", a.Hash).Msg("audit trail: newest record")
	}
	return nil
}
