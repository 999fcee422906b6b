package metrics

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// families are the first tokens of subjects that are stored; "kv" stands for
// all buckets.
var families = []string{"job", "hold", "evt", "prog", "sched", "dlq", "hook", "audit", "trail", "trailin", "lease", "kv"}

// Publishes measures the durable writes of a process, for bus.Config.Observe.
func Publishes(reg prometheus.Registerer) bus.Observer {
	seconds := histogram(reg, "bus_publish_duration_seconds", "Time to the acknowledgement of a durable write, by the first word of its subject (kv: a bucket).", busBuckets, "family")
	errs := counter(reg, "bus_publish_errors_total",
		"Durable writes that failed. Conflict and taken are part of the game; full is backpressure; frozen and unavailable need a look.", "family", "reason")
	return func(family string, took time.Duration, err error) {
		if !slices.Contains(families, family) {
			family = "other"
		}
		seconds.WithLabelValues(family).Observe(took.Seconds())
		if err != nil {
			errs.WithLabelValues(family, reason(err)).Inc()
		}
	}
}

func reason(err error) string {
	for _, r := range []struct {
		err  error
		name string
	}{
		{bus.ErrWrongSequence, "conflict"}, {bus.ErrSubjectTaken, "taken"}, {bus.ErrExists, "taken"}, {bus.ErrDuplicate, "taken"},
		{bus.ErrFull, "full"}, {bus.ErrFrozen, "frozen"}, {bus.ErrUnavailable, "unavailable"}, {bus.ErrClosed, "unavailable"},
		{context.DeadlineExceeded, "unavailable"}, {context.Canceled, "cancelled"}, {bus.ErrDenied, "denied"},
	} {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "other"
}

// Connection registers the state of the connection to the bus.
func Connection(reg prometheus.Registerer, connected func() bool, losses func() uint64) {
	gauge(reg, "bus_connected", "1 while a server of the bus is connected.", func() float64 {
		if connected() {
			return 1
		}
		return 0
	})
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: namespace + "bus_losses_total", Help: "Times at which live messages may have been missed: the connection went away, or was too slow.",
	}, func() float64 { return float64(losses()) }))
}

// Space registers the room of the disk under an embedded store.
func Space(reg prometheus.Registerer, space func() (free, total int64, err error)) {
	value := func(pick func(free, total int64) int64) func() float64 {
		return func() float64 {
			free, total, err := space()
			if err != nil {
				return 0 // a store that cannot be looked at has no room
			}
			return float64(pick(free, total))
		}
	}
	gauge(reg, "store_free_bytes", "Free space of the disk that holds the embedded store.", value(func(free, _ int64) int64 { return free }))
	gauge(reg, "store_size_bytes", "Size of the disk that holds the embedded store.", value(func(_, total int64) int64 { return total }))
}

// streamsFresh is how long a look at the streams serves whoever scrapes.
const streamsFresh = 15 * time.Second

// advisories are the kinds of advisories that the audit stream keeps.
var advisories = []string{"max_deliveries", "msg_terminated", "leader_elected", "quorum_lost"}

// streams reads the state of the streams when somebody scrapes. Every replica
// tells the same.
type streams struct {
	look func(ctx context.Context, stream, subjects string) (bus.StreamState, error)

	messages, bytes, maxBytes, oldest, replicas, current, leader, kept *prometheus.Desc

	mu    sync.Mutex // guards the fields below, and is held while one looks
	at    time.Time
	found map[string]bus.StreamState
}

// Streams registers the gauges of the streams. look is bus.JetStream's Stream.
func Streams(reg prometheus.Registerer, look func(ctx context.Context, stream, subjects string) (bus.StreamState, error)) {
	d := func(name, help string) *prometheus.Desc { return desc("bus_stream_"+name, help, "stream") }
	reg.MustRegister(&streams{
		look:     look,
		messages: d("messages", "Messages in the stream."),
		bytes:    d("bytes", "Bytes in the stream."),
		maxBytes: d("max_bytes", "Bytes at which EVT and PROG drop the oldest and queues refuse; 0: no bound."),
		oldest:   d("oldest_age_seconds", "Age of the oldest message of the stream."),
		replicas: d("replicas", "Copies there should be."),
		current:  d("replicas_current", "Copies that are up and caught up, the leader's included."),
		leader:   d("has_leader", "1 while the stream has a leader, 0 when it answers nothing: no quorum."),
		kept:     desc("bus_advisories", "Advisories of the server in the audit stream, by kind. It grows when one comes and shrinks when an old one goes.", "kind"),
	})
}

// Describe implements prometheus.Collector.
func (s *streams) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.messages, s.bytes, s.maxBytes, s.oldest, s.replicas, s.current, s.leader, s.kept} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *streams) Collect(ch chan<- prometheus.Metric) {
	for _, name := range bus.Streams() {
		st, ok := s.states()[name]
		if !ok {
			put(ch, s.leader, 0, name)
			continue
		}
		put(ch, s.leader, 1, name)
		put(ch, s.messages, float64(st.Messages), name)
		put(ch, s.bytes, float64(st.Bytes), name)
		put(ch, s.maxBytes, float64(st.MaxBytes), name)
		age := 0.0
		if !st.Oldest.IsZero() {
			age = max(time.Since(st.Oldest), 0).Seconds()
		}
		put(ch, s.oldest, age, name)
		put(ch, s.replicas, float64(st.Replicas), name)
		put(ch, s.current, float64(st.Current), name)
		if name == bus.StreamAudit {
			s.collectAdvisories(ch, st.Subjects)
		}
	}
}

func (s *streams) collectAdvisories(ch chan<- prometheus.Metric, subjects map[string]uint64) {
	count := map[string]uint64{}
	for subject, n := range subjects {
		for _, kind := range advisories {
			if strings.Contains(subject, "."+strings.ToUpper(kind)+".") {
				count[kind] += n
			}
		}
	}
	for _, kind := range advisories {
		put(ch, s.kept, float64(count[kind]), kind)
	}
}

// states looks at the streams, unless somebody has done so lately. A stream
// that does not answer is left out.
func (s *streams) states() map[string]bus.StreamState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found != nil && time.Since(s.at) < streamsFresh {
		return s.found
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	found := map[string]bus.StreamState{}
	var mu sync.Mutex // guards found
	var wg sync.WaitGroup
	for _, name := range bus.Streams() {
		wg.Go(func() {
			filter := ""
			if name == bus.StreamAudit {
				filter = bus.AdvisorySubjects
			}
			st, err := s.look(ctx, name, filter)
			if err != nil {
				return // told as a stream without a leader
			}
			mu.Lock()
			defer mu.Unlock()
			found[name] = st
		})
	}
	wg.Wait()
	s.found, s.at = found, time.Now()
	return found
}
