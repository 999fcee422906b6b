//go:build future

package testpacks

import (
	"context"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

var later = []packs.Pack{packs.Define(packs.Spec[echoInput, echoOutput]{
	Name:    "test.echo",
	Version: 2,
	Summary: "Returns its input, marked",
	Hidden:  true,
	Run: func(_ context.Context, run *packs.Run, in echoInput) (echoOutput, error) {
		return echoOutput{Message: "v2 " + in.Message, Data: in.Data, Attempt: run.Attempt, Subject: run.Caller.Subject}, nil
	},
})}
