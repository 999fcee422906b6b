package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// subjectsPage is how many subjects the server lists at once.
const subjectsPage = 100_000

func (o *objects) Reclaim(ctx context.Context, age time.Duration) (int, error) {
	uploads, err := o.uploads(ctx)
	if err != nil {
		return 0, fmt.Errorf("reclaim in object bucket %s: %w", o.bucket, err)
	}
	// The descriptions are read after the chunks: one published in between
	// saves its chunks.
	if err := o.walk(ctx, func(i jetstream.ObjectInfo) error {
		delete(uploads, i.NUID)
		return nil
	}); err != nil {
		return 0, err
	}
	removed := 0
	for id := range uploads {
		s, err := o.conn.last(ctx, o.stream, o.chunks(id), true)
		if errors.Is(err, ErrNoMessage) || err == nil && time.Since(s.time) < age {
			continue
		}
		if err == nil {
			var n int
			n, err = o.conn.purge(ctx, o.stream, o.chunks(id), 0)
			removed += n
		}
		if err != nil {
			return removed, fmt.Errorf("reclaim in object bucket %s: %w", o.bucket, err)
		}
	}
	return removed, nil
}

// uploads lists the ids that have chunks.
func (o *objects) uploads(ctx context.Context) (map[string]struct{}, error) {
	ids, prefix := map[string]struct{}{}, o.chunks("")
	err := o.conn.subjects(ctx, o.stream, prefix+">", func(s string) {
		ids[strings.TrimPrefix(s, prefix)] = struct{}{}
	})
	return ids, err
}

// subjects calls fn for every subject that has messages and matches filter.
func (c *Conn) subjects(ctx context.Context, stream, filter string, fn func(string)) error {
	for offset := 0; ; {
		var resp struct {
			answer
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		req := map[string]any{"subjects_filter": filter, "offset": offset}
		if err := c.inquire(ctx, "STREAM.INFO."+stream, req, &resp); err != nil {
			return err
		}
		for s := range resp.State.Subjects {
			fn(s)
		}
		if offset += len(resp.State.Subjects); len(resp.State.Subjects) < subjectsPage {
			return nil
		}
	}
}

// CountSubjects counts the subjects of a stream that have messages and match
// filter. The server lists them all: it is for monitoring, not for hot paths.
func (c *Conn) CountSubjects(ctx context.Context, stream, filter string) (int, error) {
	n := 0
	err := c.subjects(ctx, c.names.stream(stream), c.names.subject(filter), func(string) { n++ })
	if err != nil {
		return 0, fmt.Errorf("count subjects of %s: %w", stream, err)
	}
	return n, nil
}
