package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// latency measures one call at a time of a pack that does nothing, from the
// request to its result, beside a request of the same server that touches no
// job.
func latency(ctx context.Context, dir string) error {
	p, err := start(ctx, dir, "127.0.0.1:38472")
	if err != nil {
		return err
	}
	defer p.stop()
	token, err := p.file("token")
	if err != nil {
		return err
	}
	client := &http.Client{}
	call := func(method, path, body string) (time.Duration, error) {
		req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewBufferString(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close() // read to the end
		if resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%s %s: status %d", method, path, resp.StatusCode)
		}
		return time.Since(began), err
	}
	const input = `{"message":"0123456789012345678901234567890123456789"}`
	series := func(method, path, body string) ([]time.Duration, error) {
		var all []time.Duration
		for i := range *calls + 50 {
			d, err := call(method, path, body)
			if err != nil {
				return nil, err
			}
			if i >= 50 { // the first ones warm up
				all = append(all, d)
			}
		}
		slices.Sort(all)
		return all, nil
	}
	jobs, err := series(http.MethodPost, "/api/v1/packs/test.echo", input)
	if err != nil {
		return err
	}
	plain, err := series(http.MethodGet, "/version", "")
	if err != nil {
		return err
	}
	p50, p99 := jobs[len(jobs)/2], jobs[len(jobs)*99/100]
	fmt.Printf("idle call, submit to result through REST: p50 %.2f ms, p99 %.2f ms (aim: p50 under 2 ms)\n", ms(p50), ms(p99))
	fmt.Printf("  the same server answering /version:     p50 %.2f ms; ratio %.1f\n\n", ms(plain[len(plain)/2]), float64(p50)/float64(plain[len(plain)/2]))
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
