package testpacks

import (
	"context"
	"os"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type crashInput struct {
	Mode string `json:"mode,omitempty" jsonschema:"enum=panic,enum=exit" jsonschema_description:"panic: the handler panics. exit: the whole process is killed."`
	// Times lets a later attempt live. A killed process is not charged, so
	// Attempt does not count up; see Runs of the job record.
	Times int `json:"times,omitempty" jsonschema:"minimum=0" jsonschema_description:"Number of first attempts that crash. 0 crashes all."`
}

// Crash ends its handler or its process in the way a bug would.
var Crash = packs.Define(packs.Spec[crashInput, failOutput]{
	Name:     "test.crash",
	Summary:  "Panics, or kills its process",
	Hidden:   true,
	Defaults: crashInput{Mode: "panic"},
	Run: func(_ context.Context, run *packs.Run, in crashInput) (failOutput, error) {
		switch {
		case in.Times > 0 && run.Attempt > in.Times:
		case in.Mode == "exit":
			die()
		default:
			panic("crashed as asked")
		}
		return failOutput{Attempt: run.Attempt}, nil
	},
})

// die ends the process as kill -9 would, so that nothing is cleaned up.
func die() {
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Kill() == nil {
		select {} // the signal is on its way
	}
	os.Exit(137)
}
