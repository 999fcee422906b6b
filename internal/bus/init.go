package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// minAPILevel is that of server 2.14: repeating schedules and the freeze of a
// stream after a storage error.
const minAPILevel = 4

// VersionError says that the data on the server was written by a newer
// program. Nothing was changed.
type VersionError struct {
	Where string // the stream that says so
	Found int    // version on the server
	Known int    // newest version this program knows
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("data of a newer version: %s has topology version %d, this program knows %d; upgrade it", e.Where, e.Found, e.Known)
}

// APILevelError says that the server is too old.
type APILevelError struct{ Found, Needed int }

func (e *APILevelError) Error() string {
	return fmt.Sprintf("NATS server has JetStream API level %d, level %d is needed: use nats-server 2.15.3 or newer", e.Found, e.Needed)
}

// Mismatch is one thing on the server that is not as Init would make it.
type Mismatch struct {
	Stream   string `json:"stream"`
	Consumer string `json:"consumer,omitempty"`
	// What is "missing", "older" (Init will bring it up to date) or "edited"
	// (changed by somebody else: Init leaves it alone).
	What string `json:"what"`
	// Fields names the settings that differ.
	Fields []string `json:"fields,omitempty"`
}

func (m Mismatch) String() string {
	name := m.Stream
	if m.Consumer != "" {
		name += "/" + m.Consumer
	}
	return fmt.Sprintf("%s: %s %v", name, m.What, m.Fields)
}

// Status is how the server's topology compares with this program's.
type Status struct {
	Version    int        `json:"version"` // newest found, 0 when there is nothing yet
	Known      int        `json:"known"`
	APILevel   int        `json:"api_level"`
	Streams    int        `json:"streams"` // that exist
	Mismatches []Mismatch `json:"mismatches,omitempty"`
}

// found is what the server holds for one streamSpec.
type found struct {
	spec      streamSpec
	stream    *jetstream.StreamConfig // nil: missing
	consumers map[string]jetstream.ConsumerConfig
}

// Init makes or migrates streams, consumers and buckets. It may run any number
// of times, from several processes at once. What an operator edited is left
// as it is and shows in the Status returned. Errors: *VersionError when the
// data is of a newer version and *APILevelError when the server is too old,
// with nothing changed in either case. It needs the admin role.
func (c *Conn) Init(ctx context.Context) (Status, error) {
	if err := c.profile.validate(); err != nil {
		return Status{}, fmt.Errorf("bus profile %s: %w", c.profile.Name, err)
	}
	st, all, err := c.survey(ctx)
	if err != nil {
		return st, err
	}
	if st.Version > TopologyVersion {
		return st, c.newer(all)
	}
	for _, f := range all {
		if err := c.apply(ctx, f); err != nil {
			return st, fmt.Errorf("set up stream %s: %w", f.spec.config.Name, err)
		}
	}
	return c.Status(ctx)
}

// Status compares the topology on the server with this program's and changes
// nothing.
func (c *Conn) Status(ctx context.Context) (Status, error) {
	st, all, err := c.survey(ctx)
	if err != nil {
		return st, err
	}
	for _, f := range all {
		st.Mismatches = append(st.Mismatches, c.compare(f)...)
	}
	return st, nil
}

func (c *Conn) survey(ctx context.Context) (Status, []found, error) {
	ctx, cancel := c.bound(ctx, surveyTimeout)
	defer cancel()
	st := Status{Known: TopologyVersion}
	info, err := c.js.AccountInfo(ctx)
	if err != nil {
		return st, nil, fmt.Errorf("ask for JetStream: %w", c.translate(err))
	}
	if st.APILevel = info.API.Level; st.APILevel < minAPILevel {
		return st, nil, &APILevelError{Found: st.APILevel, Needed: minAPILevel}
	}
	var all []found
	for _, spec := range topology(c.names, c.profile) {
		f, err := c.look(ctx, spec)
		if err != nil {
			return st, nil, fmt.Errorf("look at stream %s: %w", spec.config.Name, err)
		}
		if f.stream != nil {
			st.Streams++
			st.Version = max(st.Version, version(f.stream.Metadata))
		}
		all = append(all, f)
	}
	return st, all, nil
}

func (c *Conn) look(ctx context.Context, spec streamSpec) (found, error) {
	f := found{spec: spec}
	s, err := c.js.Stream(ctx, spec.config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return f, nil
	}
	if err != nil {
		return f, c.translate(err)
	}
	cfg := s.CachedInfo().Config
	f.stream = &cfg
	if len(spec.consumers) == 0 {
		return f, nil
	}
	f.consumers = map[string]jetstream.ConsumerConfig{}
	list := s.ListConsumers(ctx)
	for i := range list.Info() {
		f.consumers[i.Name] = i.Config
	}
	return f, c.translate(list.Err())
}

func version(meta map[string]string) int {
	v, _ := strconv.Atoi(meta[metaVersion]) // absent or foreign: 0
	return v
}

func (c *Conn) newer(all []found) error {
	for _, f := range all {
		if f.stream != nil && version(f.stream.Metadata) > TopologyVersion {
			return &VersionError{Where: f.stream.Name, Found: version(f.stream.Metadata), Known: TopologyVersion}
		}
	}
	return nil
}

func (c *Conn) apply(ctx context.Context, f found) error {
	ctx, cancel := c.bound(ctx, surveyTimeout)
	defer cancel()
	want, err := stamp(f.spec.config)
	if err != nil {
		return err
	}
	switch {
	case f.stream == nil:
		// Another process may have made it in between: then both agree or the
		// server says so.
		if _, err := c.js.CreateStream(ctx, want); err != nil {
			return c.translate(err)
		}
	case len(streamDiff(f.spec.config, *f.stream)) > 0 && streamFault(f) == "older",
		version(f.stream.Metadata) < TopologyVersion && len(streamDiff(f.spec.config, *f.stream)) == 0:
		if _, err := c.js.UpdateStream(ctx, want); err != nil {
			return c.translate(err)
		}
	}
	for _, consumer := range f.spec.consumers {
		have, ok := f.consumers[consumer.Name]
		diff := consumerDiff(consumer, have)
		if ok && (len(diff) == 0 || consumerFault(have) == "edited") {
			continue
		}
		if err := c.applyConsumer(ctx, want.Name, consumer); err != nil {
			return fmt.Errorf("consumer %s: %w", consumer.Name, err)
		}
	}
	return nil
}

func (c *Conn) applyConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	cfg.Metadata = map[string]string{metaVersion: strconv.Itoa(TopologyVersion), metaConfig: string(b)}
	_, err = c.js.CreateOrUpdateConsumer(ctx, stream, cfg)
	return c.translate(err)
}

func stamp(cfg jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return cfg, err
	}
	cfg.Metadata = map[string]string{metaVersion: strconv.Itoa(TopologyVersion), metaConfig: string(b)}
	return cfg, nil
}
