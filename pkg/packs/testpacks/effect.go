package testpacks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type effectInput struct {
	URL    string `json:"url" jsonschema:"format=uri" jsonschema_description:"Where the effect is counted: it gets one POST with job_id and attempt."`
	HoldMS int    `json:"hold_ms,omitempty" jsonschema:"minimum=0,maximum=60000" jsonschema_description:"Time to wait between the effect and the end of the run, in milliseconds."`
}

type effectOutput struct {
	Status int `json:"status" jsonschema_description:"HTTP status of the POST."`
}

// Effect has an effect that must not repeat.
var Effect = packs.Define(packs.Spec[effectInput, effectOutput]{
	Name:    "test.effect",
	Summary: "Makes one POST that must not repeat",
	Hidden:  true,
	Needs:   packs.Needs{Egress: true},
	Effect:  packs.EffectOnce,
	Run:     effect,
})

func effect(ctx context.Context, run *packs.Run, in effectInput) (effectOutput, error) {
	if err := run.CheckURL(ctx, in.URL); err != nil {
		return effectOutput{}, err
	}
	if err := run.Begin(ctx); err != nil {
		return effectOutput{}, err
	}
	body, err := json.Marshal(map[string]any{"job_id": run.JobID, "attempt": run.Attempt})
	if err != nil {
		return effectOutput{}, fmt.Errorf("encode effect: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.URL, bytes.NewReader(body))
	if err != nil {
		return effectOutput{}, packs.Fail(packs.InvalidInput, err, "the URL cannot be requested")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := run.HTTP().Do(req)
	if err != nil {
		return effectOutput{}, fmt.Errorf("post effect: %w", err)
	}
	defer resp.Body.Close()
	run.Progress(50, "effect done")
	select {
	case <-time.After(time.Duration(in.HoldMS) * time.Millisecond):
	case <-ctx.Done():
		return effectOutput{}, fmt.Errorf("hold: %w", context.Cause(ctx))
	}
	return effectOutput{Status: resp.StatusCode}, nil
}
