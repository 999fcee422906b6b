package packs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// The types are the contract: their tags become the schemas every surface
// shows and checks.
type countInput struct {
	Text string `json:"text" jsonschema:"minLength=1" jsonschema_description:"The text to count in."`
	Unit string `json:"unit,omitempty" jsonschema:"enum=words,enum=lines" jsonschema_description:"What to count."`
}

type countOutput struct {
	Count int `json:"count"`
}

// Count is a whole pack. Its line in pkg/packs/catalog makes it available.
var Count = packs.Define(packs.Spec[countInput, countOutput]{
	Name:     "text.count",
	Summary:  "Counts the words or lines of a text",
	Defaults: countInput{Unit: "words"},
	Examples: []packs.Example{{Title: "Count words", Input: json.RawMessage(`{"text":"one two"}`)}},
	Run: func(_ context.Context, run *packs.Run, in countInput) (countOutput, error) {
		run.Progress(50, "counting")
		if in.Unit == "lines" {
			return countOutput{Count: strings.Count(in.Text, "\n") + 1}, nil
		}
		return countOutput{Count: len(strings.Fields(in.Text))}, nil
	},
})

func ExampleDefine() {
	var engine packs.Engine
	run := func(input string) {
		out, err := engine.Execute(context.Background(), Count, packs.Invocation{Input: json.RawMessage(input)})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(out.Output))
	}
	run(`{"text":"to be or not"}`)
	run(`{"text":"to be\nor not","unit":"lines"}`)
	run(`{"unit":"pages"}`)
	// Output:
	// {"count":4}
	// {"count":2}
	// invalid_input: the input of text.count is invalid: /text: is required; /unit: must be one of "words", "lines"; got "pages"
}
