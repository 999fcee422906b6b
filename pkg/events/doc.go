// Package events is the event vocabulary of helmdeck: the types of events and
// the Go struct of each one's data, the subjects of the bus, the CloudEvents
// 1.0 codec of the NATS binding, and a Subscriber with which an outside
// program follows its jobs over NATS.
//
// An event is the CloudEvents SDK's event.Event. On the bus it travels in
// binary mode: attributes as percent-encoded "ce-" headers, data as payload.
//
//	src, err := events.NewSource("prod")
//	ev, err := src.Lifecycle(job, events.About{})
//	header, data, err := events.Encode(ev)
//	subject, err := events.Evt(job.Key(), events.KindLifecycle)
//
// It does not create streams and does not decide what is published when: that
// is internal/bus.
package events
