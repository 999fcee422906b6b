package testpacks

import (
	"context"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type sleepInput struct {
	MS              int  `json:"ms" jsonschema:"minimum=0,maximum=900000" jsonschema_description:"Time to sleep, in milliseconds."`
	ProgressEveryMS int  `json:"progress_every_ms,omitempty" jsonschema:"minimum=0" jsonschema_description:"Time between two progress reports, in milliseconds. 0 reports nothing."`
	IgnoreCancel    bool `json:"ignore_cancel,omitempty" jsonschema_description:"Sleep to the end although the job was cancelled or its time is over."`
}

type sleepOutput struct {
	SleptMS int64 `json:"slept_ms"`
	Attempt int   `json:"attempt"`
}

// Sleep waits, reports progress and stops when told.
var Sleep = packs.Define(packs.Spec[sleepInput, sleepOutput]{
	Name:    "test.sleep",
	Summary: "Sleeps",
	Hidden:  true,
	Timeout: 16 * time.Minute, // a minute more than the longest sleep
	Run:     sleep,
})

func sleep(ctx context.Context, run *packs.Run, in sleepInput) (sleepOutput, error) {
	if in.IgnoreCancel {
		ctx = context.WithoutCancel(ctx)
	}
	start, total := time.Now(), time.Duration(in.MS)*time.Millisecond
	end := time.NewTimer(total)
	defer end.Stop()
	var tick <-chan time.Time // never, when nil
	if in.ProgressEveryMS > 0 {
		t := time.NewTicker(time.Duration(in.ProgressEveryMS) * time.Millisecond)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return sleepOutput{}, fmt.Errorf("sleep: %w", context.Cause(ctx))
		case <-end.C:
			return sleepOutput{SleptMS: time.Since(start).Milliseconds(), Attempt: run.Attempt}, nil
		case <-tick:
			slept := min(time.Since(start), total)
			run.Progress(100*float64(slept)/float64(total), fmt.Sprintf("slept %s of %s", slept.Round(time.Millisecond), total))
		}
	}
}
