package testpacks

import (
	"context"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type failInput struct {
	Code         packs.Code `json:"code,omitempty" jsonschema_description:"Code to fail with."`
	Message      string     `json:"message,omitempty" jsonschema_description:"Message to fail with."`
	Times        int        `json:"times,omitempty" jsonschema:"minimum=0" jsonschema_description:"Number of first attempts that fail. 0 fails all."`
	RetryAfterMS int        `json:"retry_after_ms,omitempty" jsonschema:"minimum=0" jsonschema_description:"Pause to ask for before the next attempt, in milliseconds."`
}

type failOutput struct {
	Attempt int `json:"attempt" jsonschema_description:"The attempt that succeeded."`
}

// Fail fails with a code, always or at first.
var Fail = packs.Define(packs.Spec[failInput, failOutput]{
	Name:     "test.fail",
	Summary:  "Fails with a code",
	Hidden:   true,
	Defaults: failInput{Code: packs.HandlerFailed, Message: "failed as asked"},
	Run: func(_ context.Context, run *packs.Run, in failInput) (failOutput, error) {
		if in.Times > 0 && run.Attempt > in.Times {
			return failOutput{Attempt: run.Attempt}, nil
		}
		e := packs.Errorf(in.Code, "%s", in.Message)
		e.RetryAfter = time.Duration(in.RetryAfterMS) * time.Millisecond
		return failOutput{}, e
	},
})
