package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
)

// checkBucket stores, reads and removes a file in the bucket that the
// environment configures; nil when it configures none.
func checkBucket(ctx context.Context) *check {
	cfg, err := s3.FromEnv(os.Getenv)
	if cfg == nil && err == nil {
		return nil
	}
	c := &check{Required: true}
	if cfg != nil {
		c.Address = cfg.Endpoint + "/" + cfg.Bucket
	}
	if err == nil {
		cfg.Installation = "doctor"
		err = tryBucket(ctx, *cfg)
	}
	if err != nil {
		c.Detail = err.Error()
		return c
	}
	c.OK, c.Detail = true, "stores, reads and removes"
	if cfg.PublicEndpoint == "" {
		c.Detail += "; downloads pass through the API (" + s3.EnvPublicEndpoint + " is not set)"
	} else {
		c.Detail += "; downloads from " + cfg.PublicEndpoint
	}
	return c
}

func tryBucket(ctx context.Context, cfg s3.Config) error {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	b, err := s3.New(cfg)
	if err != nil {
		return err
	}
	if err := b.Ensure(ctx); err != nil {
		return err
	}
	key, content := "doctor/"+rand.Text(), rand.Text()
	_, _, err = b.Put(ctx, key, nil, strings.NewReader(content))
	if err == nil {
		err = sameContent(ctx, b, key, content)
	}
	return errors.Join(err, b.Delete(ctx, key))
}

func sameContent(ctx context.Context, b artifacts.Blobs, key, content string) error {
	body, err := b.Open(ctx, key, artifacts.Range{})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read-only
	got, err := io.ReadAll(body)
	if err == nil && string(got) != content {
		err = fmt.Errorf("the bucket gives back other bytes than it was given")
	}
	return err
}
