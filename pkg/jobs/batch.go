package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"sync"

	"github.com/helmdeck/helmdeck/pkg/identity"
)

// MaxBatch bounds the jobs of one batch, and what one bulk call acts on: each
// is a durable write, and a call must end while its caller still waits.
const MaxBatch = 1000

// inFlight bounds the jobs of one call that are worked on at once: enough for
// the bus to write many in one commit, few enough for other callers to get
// their turn.
const inFlight = 256

// Result is what became of one job of a batch: the job, or why there is none.
type Result struct {
	Job Job
	Err error // a *packs.Error
}

// SubmitBatch submits each request on its own, many at once, and returns one
// result for each in the same order. A batch is not all or nothing: some may
// be refused while others run. The ids grow in the order of the requests.
func (s *Service) SubmitBatch(ctx context.Context, c identity.Caller, rs []Request) []Result {
	out := make([]Result, len(rs))
	subs := make([]Submission, len(rs))
	for i := range rs {
		subs[i], out[i].Err = s.prepare(c, rs[i])
	}
	together(len(rs), func(i int) {
		if out[i].Err == nil {
			out[i].Job, out[i].Err = s.accept(ctx, c, rs[i], subs[i])
		}
	})
	return out
}

// together calls fn for 0 to n-1, at most inFlight at once, and waits.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, inFlight) {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// ItemKey is the idempotency key of item i of a call that has the key key as
// a whole. It is a digest, so that it keeps within the limit whatever key is.
func ItemKey(key string, i int) string { return derived("item", key, strconv.Itoa(i)) }

// derived makes an idempotency key that no caller would choose by accident.
func derived(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		// The lengths keep ("a","bc") and ("ab","c") apart.
		sum.Write([]byte(strconv.Itoa(len(p)) + ":" + p))
	}
	return "helmdeck/" + hex.EncodeToString(sum.Sum(nil))
}
