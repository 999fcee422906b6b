package webhooks

import (
	"encoding/json"
	"errors"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// lifecycle is an event with the record it carries.
type lifecycle struct {
	event event.Event
	job   jobs.Job
}

func decode(m bus.Message) (lifecycle, error) {
	ev, err := events.Decode(m.Header, m.Data)
	if err != nil {
		return lifecycle{}, err
	}
	e := lifecycle{event: ev}
	if err := json.Unmarshal(ev.Data(), &e.job); err != nil {
		return e, err
	}
	if e.job.ID == "" || events.TypeOf(&e.job) != ev.Type() {
		return e, errors.New("the record is of another state than the event")
	}
	return e, nil
}

func (e *lifecycle) name() string { return webhooks.EventOf(e.event.Type()) }

func (e *lifecycle) subject() webhooks.Subject {
	return webhooks.Subject{Event: e.name(), Pack: e.job.Pack, Labels: e.job.Labels}
}
