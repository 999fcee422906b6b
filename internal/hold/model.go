package hold

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// entry is a held job as this process knows it.
type entry struct {
	jobstore.Held
	// blocked is the key it was last found to have no slot of; it is tried
	// again when that key is.
	blocked string
	// passed counts how often it was passed over because another of its keys
	// had no room.
	passed int
	// notBefore puts a try off.
	notBefore time.Time
	inHand    bool // being tried
	gone      bool // left the model, still in lists
	round     uint64
}

// model is what lies in hold, as far as this process has heard, by the keys
// the jobs wait for. What it misses a scan adds, what it has too much is found
// gone when its turn comes.
type model struct {
	mu        sync.Mutex // guards the fields below and all entries
	bySubject map[string]*entry
	byJob     map[string][]*entry
	lines     map[string]*line // by key
	round     uint64
}

func newModel() *model {
	return &model{bySubject: map[string]*entry{}, byJob: map[string][]*entry{}, lines: map[string]*line{}}
}

// line is who waits for one key: by lane, by tenant, oldest first.
type line struct {
	lanes map[jobs.Priority]*queue
	share limits.Share // between high, normal and low
}

type queue struct {
	share   limits.Share // between tenants
	tenants map[string]*list
}

// list is the jobs of one tenant, oldest first. Those that are gone stay in
// until they are at the front or half of all.
type list struct {
	jobs []*entry
	gone int
}

func (l *list) insert(e *entry) {
	l.jobs = append(l.jobs, e)
	for i := len(l.jobs) - 1; i > 0 && l.jobs[i-1].order(e) > 0; i-- {
		l.jobs[i-1], l.jobs[i] = l.jobs[i], l.jobs[i-1]
	}
}

func (l *list) lost() {
	l.gone++
	for len(l.jobs) > 0 && l.jobs[0].gone {
		l.jobs = l.jobs[1:]
		l.gone--
	}
	if l.gone > 32 && l.gone > len(l.jobs)/2 {
		l.jobs = slices.DeleteFunc(l.jobs, func(e *entry) bool { return e.gone })
		l.gone = 0
	}
}

// keysOf are the lines an entry stands in.
func keysOf(h jobstore.Held) []string {
	if slices.Contains(h.Slots, h.Reason) {
		return h.Slots
	}
	return append(slices.Clone(h.Slots), h.Reason)
}

// add takes a job in; it returns the keys whose turn may have come.
func (m *model) add(h jobstore.Held) []string {
	subject, err := h.Subject()
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.bySubject[subject]; e != nil {
		e.round = m.round
		return nil
	}
	e := &entry{Held: h, round: m.round}
	m.bySubject[subject] = e
	m.byJob[h.Job.ID] = append(m.byJob[h.Job.ID], e)
	keys := keysOf(h)
	for _, k := range keys {
		l := m.lines[k]
		if l == nil {
			l = &line{lanes: map[jobs.Priority]*queue{}}
			m.lines[k] = l
		}
		q := l.lanes[h.Lane]
		if q == nil {
			q = &queue{tenants: map[string]*list{}}
			l.lanes[h.Lane] = q
		}
		t := q.tenants[h.Job.Tenant]
		if t == nil {
			t = &list{}
			q.tenants[h.Job.Tenant] = t
		}
		t.insert(e)
	}
	return keys
}

// order orders by the time of submit, which ids tell: a job that comes back
// into hold keeps its place.
func (e *entry) order(o *entry) int { return strings.Compare(e.Job.ID, o.Job.ID) }

// drop takes a job out.
func (m *model) drop(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(e)
}

func (m *model) remove(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	if subject, err := e.Subject(); err == nil {
		delete(m.bySubject, subject)
	}
	rest := slices.DeleteFunc(m.byJob[e.Job.ID], func(o *entry) bool { return o == e })
	if len(rest) == 0 {
		delete(m.byJob, e.Job.ID)
	} else {
		m.byJob[e.Job.ID] = rest
	}
	for _, k := range keysOf(e.Held) {
		m.sweepLine(k, e)
	}
}

// sweepLine takes e, which is gone, out of one line, and the line away when it
// is empty.
func (m *model) sweepLine(k string, e *entry) {
	l := m.lines[k]
	if l == nil || l.lanes[e.Lane] == nil {
		return
	}
	q := l.lanes[e.Lane]
	if t := q.tenants[e.Job.Tenant]; t != nil {
		if t.lost(); len(t.jobs) > 0 {
			return
		}
	}
	delete(q.tenants, e.Job.Tenant)
	if len(q.tenants) == 0 {
		delete(l.lanes, e.Lane)
	}
	if len(l.lanes) == 0 {
		delete(m.lines, k)
	}
}

// queued forgets the copies of a job that was put back into its queue.
func (m *model) queued(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range slices.Clone(m.byJob[id]) {
		if !e.inHand {
			m.remove(e)
		}
	}
}

// begin starts a scan: what it does not meet is gone.
func (m *model) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.round++
}

// finish ends a scan, and returns every key somebody waits for.
func (m *model) finish() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.bySubject {
		e.blocked = ""
		if e.round < m.round && !e.inHand {
			m.remove(e)
		}
	}
	keys := make([]string, 0, len(m.lines))
	for k := range m.lines {
		keys = append(keys, k)
	}
	return keys
}

// waits reports whether anybody waits for key.
func (m *model) waits(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lines[key] != nil
}

// lookPast bounds how many jobs of a tenant are looked past because another
// of their keys has no room.
const lookPast = 256

// pick returns up to n jobs whose turn it is for key, each marked as in hand:
// called jobs first, the deepest before all, then the lanes by their weights or
// strictly, and tenants by their weights.
func (m *model) pick(key string, n int, p *limits.Policy) []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lines[key]
	if l == nil {
		return nil
	}
	var out []*entry
	now := time.Now()
	for len(out) < n {
		e := l.next(key, now, p)
		if e == nil {
			break
		}
		e.inHand = true
		out = append(out, e)
	}
	return out
}

func (l *line) next(key string, now time.Time, p *limits.Policy) *entry {
	for i := len(jobs.CallLanes) - 1; i >= 0; i-- {
		if e := l.lanes[jobs.CallLanes[i]].next(key, now, p); e != nil {
			return e
		}
	}
	var open []string
	for _, lane := range jobs.Lanes {
		if l.lanes[lane].first(key, now) {
			open = append(open, string(lane))
		}
	}
	if len(open) == 0 {
		return nil
	}
	lane := jobs.Priority(open[0])
	if !p.StrictLanes() {
		lane = jobs.Priority(l.share.Next(open))
		l.share.Serve(string(lane), 1, jobs.LaneWeights[lane])
	}
	return l.lanes[lane].next(key, now, p)
}

// first reports whether any job of q can be tried.
func (q *queue) first(key string, now time.Time) bool {
	if q == nil {
		return false
	}
	for _, t := range q.tenants {
		if t.ready(key, now) != nil {
			return true
		}
	}
	return false
}

func (q *queue) next(key string, now time.Time, p *limits.Policy) *entry {
	if q == nil {
		return nil
	}
	heads := map[string]*entry{}
	var open []string
	for tenant, t := range q.tenants {
		if e := t.ready(key, now); e != nil {
			heads[tenant] = e
			open = append(open, tenant)
		}
	}
	slices.Sort(open)
	tenant := q.share.Next(open)
	if tenant == "" {
		return nil
	}
	q.share.Serve(tenant, 1, p.WeightOf(tenant))
	return heads[tenant]
}

// ready is the first job that can be tried for key.
func (l *list) ready(key string, now time.Time) *entry {
	looked := 0
	for _, e := range l.jobs {
		if e.gone || e.inHand {
			continue
		}
		if e.blocked != "" && e.blocked != key || now.Before(e.notBefore) {
			if looked++; looked > lookPast {
				return nil
			}
			continue
		}
		return e
	}
	return nil
}

// putBack ends a try that did not release e.
func (m *model) putBack(e *entry, change func(*entry)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.inHand = false
	change(e)
}
