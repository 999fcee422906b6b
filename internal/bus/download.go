package bus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

func (o *objects) Get(ctx context.Context, name string) (io.ReadCloser, ObjectInfo, error) {
	raw, err := o.describe(ctx, name)
	if err != nil {
		return nil, ObjectInfo{}, o.wrap("get", name, err)
	}
	info, err := objectInfo(raw)
	if err != nil {
		return nil, ObjectInfo{}, err
	}
	return &download{ctx: ctx, objects: o, info: info, subject: o.chunks(raw.NUID), sum: sha256.New()}, info, nil
}

// download reads the chunks page by page as the reader asks for them.
type download struct {
	ctx     context.Context //nolint:containedctx // io.Reader takes none; it is that of Get
	objects *objects
	info    ObjectInfo
	subject string
	next    uint64
	page    []stored
	at      int // read bytes of page[0]
	done    int64
	sum     hash.Hash
	err     error
}

func (d *download) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	if d.done == d.info.Size {
		d.err = d.verify()
		return 0, d.err
	}
	if err := d.fill(); err != nil {
		d.err = d.objects.wrap("read", d.info.Name, err)
		return 0, d.err
	}
	chunk := d.page[0].data
	n := copy(p, chunk[d.at:])
	_, _ = d.sum.Write(p[:n]) // never fails
	d.at += n
	d.done += int64(n)
	if d.at == len(chunk) {
		d.page, d.at = d.page[1:], 0
	}
	return n, nil
}

func (d *download) verify() error {
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != d.info.SHA256 {
		return d.objects.wrap("read", d.info.Name, fmt.Errorf("content has SHA-256 %s, want %s", got, d.info.SHA256))
	}
	return io.EOF
}

func (d *download) fill() error {
	for try := 0; len(d.page) == 0; try++ {
		page, _, err := d.objects.conn.getBatch(d.ctx, d.objects.stream, getRequest{
			Sequence: max(d.next, 1), NextFor: d.subject, Batch: chunksInFlight, MaxBytes: pageBytes,
		})
		switch {
		case err != nil:
			return err
		case len(page) > 0:
			d.page, d.next = page, page[len(page)-1].sequence+1
		case try == lagTries:
			return fmt.Errorf("%w: content ends after %d of %d bytes", ErrNoMessage, d.done, d.info.Size)
		default: // a replica may lag behind the description's
			select {
			case <-d.ctx.Done():
				return d.ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func (d *download) Close() error {
	d.page, d.err = nil, errors.New("object is closed")
	return nil
}
