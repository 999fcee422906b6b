package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"time"
)

// audited measures what the audit trail costs: calls of a pack that does
// nothing through REST, many at once and one at a time, on two servers of which
// one records nothing. Each call is two records: the call, and the end of its
// job.
func audited(ctx context.Context, dir string) error {
	runs := []struct {
		name, flag string
		rate, p50  []float64
	}{{name: "audit off", flag: "--audit=off"}, {name: "audit on", flag: "--audit=on"}}
	for round := range *rounds {
		for i := range runs {
			r := &runs[i]
			rate, p50, err := calling(ctx, filepath.Join(dir, fmt.Sprint(r.flag, round)), r.flag)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.rate, r.p50 = append(r.rate, rate), append(r.p50, p50)
		}
	}
	fmt.Printf("calls through REST with and without the audit trail, %d in flight, medians of %d\n", *flight, *rounds)
	for _, r := range runs {
		fmt.Printf("  %-10s %8.0f calls/s, ratio %.2f; alone p50 %.2f ms, %+.2f ms\n", r.name+":",
			median(r.rate), median(r.rate)/median(runs[0].rate), median(r.p50), median(r.p50)-median(runs[0].p50))
	}
	fmt.Printf("  (aim: a ratio of at least 0.90, and under 0.3 ms)\n\n")
	return nil
}

// calling returns calls a second, and the median time of a lone call in ms.
func calling(ctx context.Context, dir, flag string) (rate, p50 float64, err error) {
	p, err := start(ctx, dir, "127.0.0.1:38473", flag)
	if err != nil {
		return 0, 0, err
	}
	defer p.stop()
	token, err := p.file("token")
	if err != nil {
		return 0, 0, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: *flight}}
	defer client.CloseIdleConnections()
	call := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/api/v1/packs/test.echo", bytes.NewBuffer(request.Input))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close() // read to the end
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return err
	}
	if err := each(ctx, 2**flight, *flight, call); err != nil { // the first ones warm up
		return 0, 0, err
	}
	var alone []time.Duration
	for range *calls {
		began := time.Now()
		if err := call(ctx); err != nil {
			return 0, 0, err
		}
		alone = append(alone, time.Since(began))
	}
	slices.Sort(alone)
	began := time.Now()
	err = each(ctx, *count, *flight, call)
	return float64(*count) / time.Since(began).Seconds(), ms(alone[len(alone)/2]), err
}
