package client

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// DeadSelection says which dead letters a bulk call acts on: those of IDs, at
// most jobs.MaxBatch, or those that all given filters select, newest first. No
// filter at all needs All.
type DeadSelection struct {
	IDs      []string   `json:"ids,omitempty"`
	All      bool       `json:"all,omitempty"`
	Pack     string     `json:"pack,omitempty"`
	Pool     string     `json:"pool,omitempty"`
	Code     packs.Code `json:"code,omitempty"`
	Poison   *bool      `json:"poison,omitempty"`
	Replayed *bool      `json:"replayed,omitempty"`
	Label    string     `json:"label,omitempty"` // key=value, or key for any value
	Since    time.Time  `json:"since,omitzero"`  // dead at or after it
	Until    time.Time  `json:"until,omitzero"`  // dead before it
	Page
}

// ReplayRequest is the body of POST /api/v1/dead/replay.
type ReplayRequest struct {
	// ID is one letter, the same as IDs with it alone.
	ID string `json:"id,omitempty"`
	DeadSelection
	// Input replaces the input of one letter.
	Input json.RawMessage `json:"input,omitempty"`
	// RatePerS is how many of the new jobs run a second, from jobs.MinRate to
	// jobs.MaxRate; 0: all at once.
	RatePerS float64 `json:"rate_per_s,omitempty"`
	// StartAt is when the first one runs; zero: now.
	StartAt time.Time `json:"start_at,omitzero"`
}

// ReplayList says what became of each dead letter that was asked for.
type ReplayList struct {
	Replayed []Replayed `json:"replayed"`
	Matched  int        `json:"matched"` // by the call, at most its limit
	// More: there is more than the limit, from NextCursor on.
	More       bool   `json:"more"`
	NextCursor string `json:"next_cursor,omitempty"`
	// NextStartAt is when, at the rate that was asked for, the first job of a
	// further call runs.
	NextStartAt time.Time `json:"next_start_at,omitzero"`
}

// Replayed holds the new job of a dead letter, or why there is none.
type Replayed struct {
	ID    string    `json:"id"`
	Job   *jobs.Job `json:"job,omitempty"`
	Error *Problem  `json:"error,omitempty"`
}

// DeadLetters lists dead letters, newest first, without their inputs. Tenant
// and Owner of q are of no account.
func (c *Client) DeadLetters(ctx context.Context, q jobs.DeadQuery) (list DeadList, err error) {
	err = c.get(ctx, pathOf("dead"), values(
		"pool", q.Pool, "pack", q.Pack, "code", string(q.Code), "poison", maybe(q.Poison), "replayed", maybe(q.Replayed),
		"label", labelOf(q.LabelKey, q.LabelValue), "since", timestamp(q.Since), "until", timestamp(q.Until),
		"limit", number(q.Limit), "cursor", q.Cursor), &list)
	return list, err
}

func maybe(b *bool) string {
	if b == nil {
		return ""
	}
	return strconv.FormatBool(*b)
}

func labelOf(key, value string) string {
	if value == "" {
		return key
	}
	return key + "=" + value
}

// DeadLetter shows one dead letter with its input.
func (c *Client) DeadLetter(ctx context.Context, id string) (d jobs.DeadLetter, err error) {
	err = c.get(ctx, pathOf("dead", id), nil, &d)
	return d, err
}

// Replay runs dead letters again as new jobs. With a key the call is repeated
// when the server is away, and each letter is replayed once for it.
func (c *Client) Replay(ctx context.Context, r ReplayRequest, key string) (list ReplayList, err error) {
	body, err := encode(r)
	if err != nil {
		return list, err
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("dead", "replay"), body: body, repeat: key != "",
		header: map[string]string{"Idempotency-Key": key},
	}, &list)
	return list, err
}

// DropDead forgets a dead letter.
func (c *Client) DropDead(ctx context.Context, id string) error {
	return c.exchange(ctx, call{method: http.MethodDelete, path: pathOf("dead", id)}, nil)
}

// DropManyDead forgets the dead letters of a selection.
func (c *Client) DropManyDead(ctx context.Context, s DeadSelection) (BulkResult, error) {
	return c.bulk(ctx, pathOf("dead", "drop"), s, "", true)
}
