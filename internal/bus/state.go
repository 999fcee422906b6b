package bus

import (
	"context"
	"fmt"
	"time"

	"encoding/json"
	"github.com/nats-io/nats.go"
)

// ConsumerState is a durable consumer as its leader knows it.
type ConsumerState struct {
	// Pending messages were not delivered yet; Unacked ones were, and are
	// neither acknowledged nor gone. A delivery that expired stays unacked
	// until somebody pulls again, so what waits for work is Pending + Unacked
	// less what is in hand.
	Pending, Unacked int
	// Delivered is the highest stream sequence delivered so far: what waits
	// for its first delivery comes after it.
	Delivered uint64
	// PausedUntil is when deliveries go on; zero when they are not paused.
	PausedUntil time.Time
}

// StreamState is a stream as its leader knows it.
type StreamState struct {
	Messages, Bytes uint64
	MaxBytes        int64 // 0: no bound
	MaxAge          time.Duration
	// First and Last are sequences; the last stays what it was when its
	// message goes.
	First, Last uint64
	Oldest      time.Time
	// Leader is the server that leads the stream, empty on a single one.
	Leader string
	// Replicas is how many copies there should be, Current how many are up
	// and caught up, the leader's included.
	Replicas, Current int
	// Subjects counts messages by subject, for the filter that was asked for.
	Subjects map[string]uint64
}

func (j *jetStream) Consumer(ctx context.Context, stream, consumer string) (ConsumerState, error) {
	c := (*Conn)(j)
	var info struct {
		answer
		Pending   uint64 `json:"num_pending"`
		Unacked   int    `json:"num_ack_pending"`
		Delivered struct {
			Stream uint64 `json:"stream_seq"`
		} `json:"delivered"`
		Paused    bool          `json:"paused"`
		Remaining time.Duration `json:"pause_remaining"`
	}
	if err := c.inquire(ctx, "CONSUMER.INFO."+c.names.stream(stream)+"."+consumer, nil, &info); err != nil {
		return ConsumerState{}, fmt.Errorf("look at consumer %s of %s: %w", consumer, stream, err)
	}
	s := ConsumerState{Pending: int(info.Pending), Unacked: info.Unacked, Delivered: info.Delivered.Stream}
	if info.Paused {
		s.PausedUntil = time.Now().Add(info.Remaining)
	}
	return s, nil
}

func (j *jetStream) Pause(ctx context.Context, stream, consumer string, until time.Time) error {
	c := (*Conn)(j)
	var resp struct {
		answer
		Paused bool `json:"paused"`
	}
	req := struct {
		Until time.Time `json:"pause_until,omitzero"`
	}{until.UTC()}
	if until.IsZero() {
		req.Until = time.Time{}
	}
	if err := c.ask(ctx, "CONSUMER.PAUSE."+c.names.stream(stream)+"."+consumer, req, &resp); err != nil {
		return fmt.Errorf("pause consumer %s of %s: %w", consumer, stream, err)
	}
	if want := until.After(time.Now()); resp.Paused != want {
		return fmt.Errorf("pause consumer %s of %s: the server says paused=%t, asked for %t", consumer, stream, resp.Paused, want)
	}
	return nil
}

func (j *jetStream) Next(ctx context.Context, stream, filter string, from uint64) (Message, error) {
	c := (*Conn)(j)
	body, err := json.Marshal(getRequest{Sequence: max(from, 1), NextFor: c.names.subject(filter)})
	if err != nil {
		return Message{}, err
	}
	m, err := c.read(ctx, &nats.Msg{Subject: apiPrefix + "DIRECT.GET." + c.names.stream(stream), Data: body})
	if err == nil {
		var s stored
		if s, err = direct(m); err == nil {
			return c.message(stream, s), nil
		}
	}
	return Message{}, fmt.Errorf("read next of %s in %s: %w", filter, stream, err)
}

func (j *jetStream) Stream(ctx context.Context, stream, subjects string) (StreamState, error) {
	c := (*Conn)(j)
	var info struct {
		answer
		Config struct {
			MaxBytes int64         `json:"max_bytes"`
			MaxAge   time.Duration `json:"max_age"`
			Replicas int           `json:"num_replicas"`
		} `json:"config"`
		State struct {
			Messages uint64            `json:"messages"`
			Bytes    uint64            `json:"bytes"`
			First    time.Time         `json:"first_ts"`
			FirstSeq uint64            `json:"first_seq"`
			LastSeq  uint64            `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
		Cluster struct {
			Leader   string `json:"leader"`
			Replicas []struct {
				Current bool `json:"current"`
				Offline bool `json:"offline"`
			} `json:"replicas"`
		} `json:"cluster"`
	}
	var req any
	if subjects != "" {
		req = map[string]string{"subjects_filter": subjects}
	}
	if err := c.inquire(ctx, "STREAM.INFO."+c.names.stream(stream), req, &info); err != nil {
		return StreamState{}, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	s := StreamState{
		Messages: info.State.Messages, Bytes: info.State.Bytes, MaxBytes: max(info.Config.MaxBytes, 0),
		MaxAge: info.Config.MaxAge, First: info.State.FirstSeq, Last: info.State.LastSeq,
		Leader: info.Cluster.Leader, Replicas: info.Config.Replicas, Current: 1, Subjects: info.State.Subjects,
	}
	if s.Messages > 0 {
		s.Oldest = info.State.First
	}
	for _, r := range info.Cluster.Replicas {
		if r.Current && !r.Offline {
			s.Current++
		}
	}
	return s, nil
}
