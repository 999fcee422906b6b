package testpacks

import (
	"context"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type echoInput struct {
	Message string `json:"message,omitempty" jsonschema_description:"Text to return."`
	Data    any    `json:"data,omitempty" jsonschema_description:"Any JSON value to return."`
}

type echoOutput struct {
	Message string `json:"message"`
	Data    any    `json:"data,omitempty" jsonschema_description:"The data of the input."`
	Attempt int    `json:"attempt"`
	Subject string `json:"subject" jsonschema_description:"The caller the job ran for."`
}

// Echo returns its input and who asked.
var Echo = packs.Define(packs.Spec[echoInput, echoOutput]{
	Name:    "test.echo",
	Summary: "Returns its input",
	Hidden:  true,
	Run: func(_ context.Context, run *packs.Run, in echoInput) (echoOutput, error) {
		return echoOutput{Message: in.Message, Data: in.Data, Attempt: run.Attempt, Subject: run.Caller.Subject}, nil
	},
})
