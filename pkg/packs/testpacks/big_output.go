package testpacks

import (
	"context"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type bigInput struct {
	Bytes int `json:"bytes" jsonschema:"minimum=0,maximum=67108864" jsonschema_description:"Length of the text to return."`
}

type bigOutput struct {
	Data string `json:"data"`
}

// BigOutput answers with more than a message of the bus may carry.
var BigOutput = packs.Define(packs.Spec[bigInput, bigOutput]{
	Name:    "test.big_output",
	Summary: "Returns a text of any length",
	Hidden:  true,
	Run: func(_ context.Context, _ *packs.Run, in bigInput) (bigOutput, error) {
		const digits = "0123456789"
		return bigOutput{Data: strings.Repeat(digits, in.Bytes/len(digits)+1)[:in.Bytes]}, nil
	},
})
