package s3

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// DirectLink implements artifacts.Linker: a link that callers fetch from the
// service itself, for at most 7 days, signed for its public host. Empty without
// a public endpoint. Nothing is asked of the service.
func (b *Blobs) DirectLink(ctx context.Context, key string, ttl time.Duration, h artifacts.LinkHeaders) (string, error) {
	if b.public == nil {
		return "", nil
	}
	u, err := b.public.PresignedGetObject(ctx, b.cfg.Bucket, b.dataOf(key), ttl, url.Values{
		"response-content-type":        {h.ContentType},
		"response-content-disposition": {h.Disposition},
		"response-cache-control":       {"private, no-cache"},
	})
	if err != nil {
		return "", fmt.Errorf("sign link to blob %s: %w", key, err)
	}
	return u.String(), nil
}
