package testpacks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type parentInput struct {
	Pack     string         `json:"pack,omitempty" jsonschema_description:"Pack to call."`
	Input    map[string]any `json:"input,omitempty" jsonschema_description:"Input of each child; {i} in its texts becomes the number of the child."`
	Count    int            `json:"count,omitempty" jsonschema:"minimum=0,maximum=20000" jsonschema_description:"Number of children."`
	InTurn   bool           `json:"in_turn,omitempty" jsonschema_description:"Call one after the other instead of all in a map."`
	Parallel int            `json:"parallel,omitempty" jsonschema:"minimum=0" jsonschema_description:"Children of the map under way at once. 0 is the default."`
	Policy   string         `json:"policy,omitempty" jsonschema:"enum=fail_fast,enum=collect_all,enum=min_success" jsonschema_description:"What the map makes of failures."`
	Min      int            `json:"min,omitempty" jsonschema:"minimum=0" jsonschema_description:"Successes that min_success asks for."`
	Key      string         `json:"key,omitempty" jsonschema_description:"Key under which the children are shared; the number of the child is appended."`
	TimeoutS int            `json:"timeout_s,omitempty" jsonschema:"minimum=0" jsonschema_description:"Time of one attempt of a child, in seconds."`
	Times    int            `json:"times,omitempty" jsonschema:"minimum=0" jsonschema_description:"Number of first attempts that fail once the children have ended."`
	Each     bool           `json:"each,omitempty" jsonschema_description:"Take the children of the map one by one."`
}

type parentOutput struct {
	Attempt int      `json:"attempt"`
	Jobs    []string `json:"jobs" jsonschema_description:"Ids of the children, in the order of their inputs."`
	Outputs []any    `json:"outputs" jsonschema_description:"Outputs of the children, null for one that failed."`
	Errors  []string `json:"errors" jsonschema_description:"Codes of the children that failed."`
}

// Parent calls other packs.
var Parent = packs.Define(packs.Spec[parentInput, parentOutput]{
	Name:     "test.parent",
	Summary:  "Calls other packs",
	Hidden:   true,
	Needs:    packs.Needs{Calls: true},
	Defaults: parentInput{Pack: "test.echo", Count: 1, Policy: "fail_fast"},
	Timeout:  16 * time.Minute,
	Run:      parent,
})

func parent(ctx context.Context, run *packs.Run, in parentInput) (parentOutput, error) {
	children, err := children(ctx, run, in)
	if err != nil {
		return parentOutput{}, err
	}
	if run.Attempt <= in.Times {
		return parentOutput{}, packs.Retry(packs.Errorf(packs.HandlerFailed, "failed as asked, after the children"), 0)
	}
	out := parentOutput{Attempt: run.Attempt, Jobs: []string{}, Outputs: []any{}, Errors: []string{}}
	for _, c := range children {
		out.Jobs = append(out.Jobs, c.JobID)
		var v any
		if c.Err != nil {
			out.Errors = append(out.Errors, string(c.Err.Code))
		} else if err := c.Decode(&v); err != nil {
			return parentOutput{}, err
		}
		out.Outputs = append(out.Outputs, v)
	}
	return out, nil
}

func children(ctx context.Context, run *packs.Run, in parentInput) ([]packs.Child, error) {
	template, err := json.Marshal(in.Input)
	if err != nil {
		return nil, fmt.Errorf("encode input of the children: %w", err)
	}
	if in.Input == nil {
		template = []byte("{}")
	}
	input := func(i int) any {
		return json.RawMessage(strings.ReplaceAll(string(template), "{i}", strconv.Itoa(i)))
	}
	options := packs.CallOptions{Timeout: time.Duration(in.TimeoutS) * time.Second}
	key := func(i int) string { return in.Key + "/" + strconv.Itoa(i) }
	if in.InTurn {
		return inTurn(ctx, run, in, input, options, key)
	}
	o := packs.MapOptions{CallOptions: options, Parallel: in.Parallel}
	if in.Key != "" {
		o.KeyOf = key
	}
	switch in.Policy {
	case "collect_all":
		o.Policy = packs.CollectAll
	case "min_success":
		o.Policy = packs.MinSuccess(in.Min)
	}
	var taken []packs.Child
	if in.Each {
		o.Each = func(i int, c packs.Child) error {
			if i != len(taken) {
				return fmt.Errorf("child %d came as number %d", i, len(taken))
			}
			taken = append(taken, c)
			return nil
		}
	}
	kept, err := run.Map(ctx, in.Pack, packs.Generate(in.Count, input), o)
	if in.Each {
		return taken, err
	}
	return kept, err
}

func inTurn(ctx context.Context, run *packs.Run, in parentInput, input func(int) any, o packs.CallOptions, key func(int) string) ([]packs.Child, error) {
	var out []packs.Child
	for i := range in.Count {
		if in.Key != "" {
			o.Key = key(i)
		}
		c, err := run.CallWith(ctx, in.Pack, input(i), o)
		var failed *packs.Error
		if err != nil && (in.Policy != "collect_all" || !errors.As(err, &failed)) {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}
