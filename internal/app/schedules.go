package app

import (
	"context"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/metrics"
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
	return repeats{store, service, &control.Schedules{
		JS: js, Service: service, Repaired: metrics.ScheduleRepairs(r.registry), Late: metrics.NewControl(r.registry).LateSchedule, Log: r.Log,
	}}, nil
}
