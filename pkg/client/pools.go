package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Pools shows the load of every pool.
func (c *Client) Pools(ctx context.Context) ([]PoolStatus, error) {
	var list PoolList
	err := c.get(ctx, pathOf("pools"), nil, &list)
	return list.Pools, err
}

// Pool shows the load of one pool.
func (c *Client) Pool(ctx context.Context, pool string) (p PoolStatus, err error) {
	err = c.get(ctx, pathOf("pools", pool), nil, &p)
	return p, err
}

// PausePool holds the jobs of a pool back: they are still accepted, and those
// that run go on. It needs an administrator's token.
func (c *Client) PausePool(ctx context.Context, pool string, r PauseRequest) (p PoolStatus, err error) {
	err = c.post(ctx, pathOf("pools", pool, "pause"), r, &p)
	return p, err
}

// ResumePool ends the pause of a pool.
func (c *Client) ResumePool(ctx context.Context, pool string) (p PoolStatus, err error) {
	err = c.post(ctx, pathOf("pools", pool, "resume"), struct{}{}, &p)
	return p, err
}

// Workers lists the live workers. It needs an administrator's token.
func (c *Client) Workers(ctx context.Context) ([]WorkerStatus, error) {
	var list WorkerList
	err := c.get(ctx, pathOf("workers"), nil, &list)
	return list.Workers, err
}

// DrainWorker makes a worker take no more jobs and end, and returns what it
// does now; Workers shows how far it is, until it is gone.
func (c *Client) DrainWorker(ctx context.Context, id string, r DrainRequest) (w WorkerStatus, err error) {
	err = c.post(ctx, pathOf("workers", id, "drain"), r, &w)
	return w, err
}

// post sends a body that may be sent again without harm.
func (c *Client) post(ctx context.Context, path string, body, out any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the body of POST %s: %w", path, err)
	}
	return c.exchange(ctx, call{method: http.MethodPost, path: path, body: b, repeat: true}, out)
}
