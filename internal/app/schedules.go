package app

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// repeats is what an API replica has for jobs that repeat.
type repeats struct {
	store   *schedulestore.Store
	service *schedules.Service
	loop    *control.Schedules
}

func (r *apiRole) schedules(ctx context.Context, js bus.JetStream, client *jobs.Service) (repeats, error) {
	store, err := schedulestore.New(ctx, js, r.Log)
	if err != nil {
		return repeats{}, err
	}
	service := schedules.New(schedules.Config{
		Store: store, Names: store, Timers: store, Jobs: client, KeySecret: r.keys.Idempotency, Log: r.Log,
	})
	put := newScheduleRepairs(r.registry)
	return repeats{store, service, &control.Schedules{JS: js, Service: service, Repaired: put, Log: r.Log}}, nil
}

func newScheduleRepairs(reg prometheus.Registerer) func(schedules.Repairs) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "helmdeck_schedule_repairs_total",
		Help: "Schedules found overdue without their timer having fired, and timers that were missing or wrong.",
	}, []string{"kind"})
	reg.MustRegister(c)
	overdue, timers := c.WithLabelValues("overdue"), c.WithLabelValues("timer")
	return func(r schedules.Repairs) {
		overdue.Add(float64(r.Overdue))
		timers.Add(float64(r.Timers))
	}
}
