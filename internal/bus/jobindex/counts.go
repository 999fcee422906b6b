package jobindex

import (
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// class is what an entry counts as.
type class byte

const (
	nothing class = iota
	isWaiting
	isRunning
)

func classOf(s jobs.State) class {
	switch s {
	case jobs.Queued, jobs.Scheduled, jobs.Retrying:
		return isWaiting
	case jobs.Running:
		return isRunning
	}
	return nothing
}

// party is a tenant, or with an owner one subject of it.
type party struct{ tenant, owner string }

// tally is what a party takes, and how fast it stops waiting.
type tally struct {
	use limits.Use
	at  time.Time // when a job stopped waiting last
}

// paceShare is the weight of the newest interval in the pace: about the last
// ten count.
const paceShare = 0.1

func (t *tally) served(now time.Time) {
	if !t.at.IsZero() {
		d := now.Sub(t.at)
		if t.use.Pace > 0 {
			d = time.Duration(float64(t.use.Pace)*(1-paceShare) + float64(d)*paceShare)
		}
		t.use.Pace = max(d, 1)
	}
	t.at = now
}

// settle brings the tallies in line with e after a change of it; x.mu is held.
func (x *Index) settle(e *entry) {
	was, now := e.counted, classOf(e.state)
	if was == now {
		return
	}
	e.counted = now
	x.count(e, party{e.tenant, ""}, was, now)
	x.count(e, party{e.tenant, e.owner}, was, now)
}

func (x *Index) count(e *entry, p party, was, now class) {
	t := x.tallies[p]
	if t == nil {
		t = &tally{}
		x.tallies[p] = t
	}
	switch was {
	case isWaiting:
		t.use.Waiting--
		t.use.Bytes -= e.bytes
		t.served(time.Now())
	case isRunning:
		t.use.Running--
	case nothing:
	}
	switch now {
	case isWaiting:
		t.use.Waiting++
		t.use.Bytes += e.bytes
	case isRunning:
		t.use.Running++
	case nothing:
		if t.use.Waiting == 0 && t.use.Running == 0 && len(x.tallies) > maxTallies {
			delete(x.tallies, p)
		}
	}
}

// maxTallies is how many idle parties are remembered, for their pace.
const maxTallies = 10_000

// Use implements limits.Counts.
func (x *Index) Use(tenant, owner string) limits.Use {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.tallies[party{tenant, owner}]; t != nil {
		return t.use
	}
	return limits.Use{}
}

// Submitted implements limits.Counts.
func (x *Index) Submitted(job jobs.Job) {
	k := job.Key()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byID[k.ID] != nil {
		return // heard of already
	}
	e := x.add(k.Tenant, k.Owner, k.ID)
	e.state, e.seen, e.job, e.bytes = job.State, x.round, &job, job.InputBytes
	x.settle(e)
}

func bytesOf(m jobfeed.Message) int64 {
	n, _ := strconv.ParseInt(first(m.Header[jobstore.BytesHeader]), 10, 64) // of an older program: 0
	return n
}
