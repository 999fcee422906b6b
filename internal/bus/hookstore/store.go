// Package hookstore is the JetStream side of webhooks: deliveries on their way
// (Store), the log of their attempts (Store too) and endpoints (Endpoints),
// over the narrow interface of internal/bus. It implements the ports of
// pkg/webhooks. Which message goes where is in docs/bus.md.
package hookstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Store implements webhooks.Queue and webhooks.Log. It is safe for concurrent
// use.
type Store struct {
	js  bus.JetStream
	log zerolog.Logger
}

// New returns a Store.
func New(js bus.JetStream, log zerolog.Logger) *Store { return &Store{js: js, log: log} }

// Enqueue implements webhooks.Queue.
func (s *Store) Enqueue(ctx context.Context, d webhooks.Delivery, once bool) error {
	subject, err := events.HookSubject(d.Tenant, d.Endpoint, d.ID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode delivery: %w", err)
	}
	out := bus.Outgoing{Subject: subject, Data: data}
	if once {
		out.MsgID = d.ID + "." + d.Endpoint
	}
	_, err = s.js.Publish(ctx, out)
	return busError(err)
}

// Later puts d on the retry ladder; doing so again replaces the time.
func (s *Store) Later(ctx context.Context, d webhooks.Delivery, at time.Time) error {
	subject, err := events.SchedHookFilter(false, d.Tenant, d.Endpoint, d.ID)
	if err != nil {
		return err
	}
	target, err := events.SchedHookFilter(true, d.Tenant, d.Endpoint, d.ID)
	if err != nil {
		return err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode delivery: %w", err)
	}
	_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Target: target, At: at, Data: data})
	return busError(err)
}

// Recall implements webhooks.Queue.
func (s *Store) Recall(ctx context.Context, d webhooks.Delivery) error {
	return s.offLadder(ctx, d.Tenant, d.Endpoint, d.ID)
}

func (s *Store) offLadder(ctx context.Context, tenant, endpoint, id string) error {
	for _, due := range []bool{false, true} {
		filter, err := events.SchedHookFilter(due, tenant, endpoint, id)
		if err != nil {
			return err
		}
		if err := s.js.Purge(ctx, bus.StreamSchedule, filter, 0); err != nil {
			return busError(err)
		}
	}
	return nil
}

// forget removes everything that waits for an endpoint, and its log.
func (s *Store) forget(ctx context.Context, tenant, endpoint string) error {
	if err := s.offLadder(ctx, tenant, endpoint, ""); err != nil {
		return err
	}
	waiting, err := events.HookFilter(tenant, endpoint, "")
	if err != nil {
		return err
	}
	if err := s.js.Purge(ctx, bus.StreamHooks, waiting, 0); err != nil {
		return busError(err)
	}
	logged, err := events.HookLogSubject(tenant, endpoint)
	if err != nil {
		return err
	}
	return busError(s.js.Purge(ctx, bus.StreamHookLog, logged, 0))
}

// Decode reads a delivery from the queue or from the ladder.
func Decode(m bus.Message) (webhooks.Delivery, error) {
	var d webhooks.Delivery
	if err := json.Unmarshal(m.Data, &d); err != nil {
		return d, fmt.Errorf("decode delivery %d of %s: %w", m.Sequence, m.Stream, err)
	}
	if d.ID == "" || d.Endpoint == "" || d.Tenant == "" {
		return d, fmt.Errorf("decode delivery %d of %s: no delivery in it", m.Sequence, m.Stream)
	}
	return d, nil
}

// pendingAgain is when a delivery whose subject is taken is moved again.
const pendingAgain = time.Second

// Move takes a delivery whose time on the ladder has come back into the queue.
// It is what the durable consumer bus.ConsumerHookMover is for.
func (s *Store) Move(ctx context.Context, due bus.Delivery) error {
	m := due.Message()
	d, err := Decode(m)
	if err != nil {
		s.log.Error().Err(err).Msg("fired retry is no delivery, taken out")
		return due.Term(ctx, "not a delivery")
	}
	err = s.Enqueue(ctx, d, false)
	if errors.Is(err, webhooks.ErrPending) {
		// What is there may be the attempt before, not yet acknowledged. To
		// drop this one now could drop the last.
		return due.Nak(ctx, pendingAgain)
	}
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.HookAfterMove)
	// As with schedules of jobs: a message that fired stays in the stream
	// unless it is removed, and one that is gone is not delivered again.
	if err := s.js.Purge(ctx, bus.StreamSchedule, m.Subject, m.Sequence+1); err != nil {
		return busError(err)
	}
	failpoint.Hit(failpoint.HookAfterPurge)
	return due.Ack(ctx)
}

// Append implements webhooks.Log.
func (s *Store) Append(ctx context.Context, tenant, endpoint string, a webhooks.Attempt) error {
	subject, err := events.HookLogSubject(tenant, endpoint)
	if err != nil {
		return err
	}
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode attempt: %w", err)
	}
	_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Data: data})
	return busError(err)
}

// List implements webhooks.Log. The cursor is the sequence of the last entry
// shown.
func (s *Store) List(ctx context.Context, tenant, endpoint string, q webhooks.LogQuery) ([]webhooks.Attempt, string, error) {
	before := uint64(0)
	if q.Cursor != "" {
		n, err := strconv.ParseUint(q.Cursor, 10, 64)
		if err != nil {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
		before = n
	}
	filter, err := events.HookLogSubject(tenant, endpoint)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", webhooks.ErrNotFound, err)
	}
	type entry struct {
		webhooks.Attempt
		seq uint64
	}
	var newest []entry // a window of the newest, one more than asked for, oldest first
	err = s.js.Scan(ctx, bus.StreamHookLog, []string{filter}, 0, func(m bus.Message) error {
		var a webhooks.Attempt
		if before > 0 && m.Sequence >= before {
			return nil
		}
		if err := json.Unmarshal(m.Data, &a); err != nil {
			s.log.Warn().Err(err).Msg("entry of the delivery log not understood, left out")
			return nil
		}
		if q.Delivery != "" && a.Delivery != q.Delivery {
			return nil
		}
		if newest = append(newest, entry{a, m.Sequence}); len(newest) > q.Limit+1 {
			newest = newest[1:]
		}
		return nil
	})
	if err != nil {
		return nil, "", busError(err)
	}
	next := ""
	if len(newest) > q.Limit {
		newest = newest[1:]
		next = strconv.FormatUint(newest[0].seq, 10)
	}
	slices.Reverse(newest)
	page := make([]webhooks.Attempt, len(newest))
	for i, e := range newest {
		page[i] = e.Attempt
	}
	return page, next, nil
}

// busError maps the errors of the bus onto those of the ports.
func busError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrNoMessage):
		return fmt.Errorf("%w: %w", webhooks.ErrNotFound, err)
	case errors.Is(err, bus.ErrWrongSequence), errors.Is(err, bus.ErrExists):
		return fmt.Errorf("%w: %w", webhooks.ErrConflict, err)
	case errors.Is(err, bus.ErrSubjectTaken):
		return fmt.Errorf("%w: %w", webhooks.ErrPending, err)
	case errors.Is(err, bus.ErrFrozen), errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrClosed),
		errors.Is(err, bus.ErrFull), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", webhooks.ErrUnavailable, err)
	}
	return err
}
