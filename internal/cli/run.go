package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/cli/input"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// request is what pack run and job submit share: what to run, and how.
type request struct {
	Name             string            `arg:"" help:"Name of the pack; NAME@v2 is that version."`
	Pairs            []string          `arg:"" optional:"" name:"key=value" help:"Input: key=text with the type that the pack gives the key, key=@FILE for the content of a file, key:=JSON, key:=@FILE for JSON from one; @- is standard input."`
	Input            string            `placeholder:"JSON|@FILE|-" help:"Input as a JSON object, from a file or standard input; keys given as words replace its own."`
	Version          string            `placeholder:"vN" help:"Version of the pack; the newest by default."`
	Priority         string            `enum:"high,normal,low," default:"" placeholder:"LANE" help:"Lane: high, normal or low; by default what the operator set for you, normal as a rule."`
	Timeout          time.Duration     `placeholder:"DURATION" help:"Time for one attempt, such as 90s; the pack's own by default."`
	MaxAttempts      int               `placeholder:"N" help:"Attempts before the job fails; the pack's own by default."`
	Label            map[string]string `placeholder:"KEY=VALUE" help:"Label to find the job by, again for more."`
	ConcurrencyKey   string            `placeholder:"TEXT" help:"Of your tenant's jobs with this key only so many run at once, the others wait."`
	ConcurrencyLimit int               `placeholder:"N" help:"How many, 1 to 1000; 1 by default."`
	ResultTTL        time.Duration     `name:"result-ttl" placeholder:"DURATION" help:"Remove the job with its result and artifacts so long after its end, 1m to 720h; kept like all others by default."`
	IdempotencyKey   string            `placeholder:"TEXT" help:"The same key and call give the same job, however often they are repeated."`
}

// submit sends the job. Repeating it on the way does no harm: without a key of
// the user's it gets a random one.
func (r *request) submit(ctx context.Context, con *console.Console, c *client.Client, change ...func(*jobs.Request)) (jobs.Job, error) {
	req, err := r.build(ctx, con, c)
	if err != nil {
		return jobs.Job{}, err
	}
	for _, f := range change {
		f(&req)
	}
	job, err := c.Submit(ctx, req)
	if err == nil {
		return job, nil
	}
	return job, withPackHints(err, req.Pack)
}

// build is the request that the words and flags make.
func (r *request) build(ctx context.Context, con *console.Console, c *client.Client) (jobs.Request, error) {
	name, version, err := nameAndVersion(r.Name, r.Version)
	if err != nil {
		return jobs.Request{}, err
	}
	in, err := r.input(ctx, con, c, name, version)
	if err != nil {
		return jobs.Request{}, err
	}
	if r.Timeout < 0 || r.Timeout > 0 && r.Timeout < time.Second {
		return jobs.Request{}, misused("--timeout must be at least 1s, got %s", r.Timeout)
	}
	if r.ResultTTL < 0 || r.ResultTTL > 0 && r.ResultTTL < time.Minute {
		return jobs.Request{}, misused("--result-ttl must be at least 1m, got %s", r.ResultTTL)
	}
	return jobs.Request{
		Pack: name, Version: version, Input: in, Priority: jobs.Priority(r.Priority),
		ResultTTLS: int((r.ResultTTL + time.Second - 1) / time.Second),
		TimeoutS:   int((r.Timeout + time.Second - 1) / time.Second), MaxAttempts: r.MaxAttempts, Labels: r.Label,
		ConcurrencyKey: r.ConcurrencyKey, ConcurrencyLimit: r.ConcurrencyLimit,
		IdempotencyKey: cmp.Or(r.IdempotencyKey, uuid.NewString()),
	}, nil
}

// withPackHints says where to read about a pack whose call was refused.
func withPackHints(err error, name string) error {
	var e *client.Error
	switch {
	case !errors.As(err, &e):
		return err
	case e.Code == packs.InvalidInput:
		f := failureOf(err)
		f.Details = slices.Clone(f.Details)
		for i := range f.Details {
			// The caller of a pack never saw the body that the input is part of.
			if rest, ok := strings.CutPrefix(f.Details[i].Pointer, "/input/"); ok {
				f.Details[i].Pointer = "/" + rest
			}
		}
		return hinted(f, "what it takes: helmdeck pack show "+name)
	case e.Code == packs.NotFound:
		return hinted(err, "the packs there are: helmdeck pack list")
	}
	return err
}

func (r *request) input(ctx context.Context, con *console.Console, c *client.Client, name, version string) (json.RawMessage, error) {
	files := &reader{con: con}
	base, err := inputOf(r.Input, files)
	if err != nil || len(r.Pairs) == 0 {
		return base, err
	}
	k, err := c.Pack(ctx, name, version)
	if err != nil {
		return nil, withPackHints(err, name)
	}
	in, err := input.Build(input.Source{Pairs: r.Pairs, Base: base, Schema: k.InputSchema, Read: files.read})
	if err != nil {
		return nil, hinted(err, "what it takes: helmdeck pack show "+name)
	}
	return in, nil
}

// inputOf reads the value of --input.
func inputOf(value string, files *reader) (json.RawMessage, error) {
	text := []byte(value)
	var err error
	switch name, isFile := strings.CutPrefix(value, "@"); {
	case isFile:
		text, err = files.read(name)
	case value == "-":
		text, err = files.read("-")
	case value == "":
		return nil, nil
	}
	if err != nil {
		return nil, misused("--input: %w", err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, &failure{exit: exitInput, Code: string(packs.InvalidInput), err: err,
			Message: fmt.Sprintf(`--input is no JSON object such as {"key": "value"}: %.80s`, text)}
	}
	return text, nil
}

type packRun struct {
	request
	Wait  time.Duration `placeholder:"DURATION" help:"Wait so long at most; the job goes on. For ever by default."`
	Async bool          `help:"Do not wait: print the job's id."`
	Save  string        `placeholder:"DIR" type:"path" help:"Download the artifacts into this folder."`
	caller
}

// Help shows with --help.
func (packRun) Help() string {
	return `Progress goes to standard error, the result alone to standard output: the output's keys as text, the whole envelope as JSON. Ctrl-C stops the waiting, not the job.

Examples:

    helmdeck pack run http.fetch url=https://example.org/
    helmdeck pack run slides.render markdown=@deck.md format=pdf --save .
    helmdeck pack run http.fetch --input '{"url":"https://example.org/"}' -o json | jq .output
    helmdeck pack run browser.screenshot_url url=https://example.org/ fullPage=true --async`
}

// Run runs.
func (p *packRun) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	job, err := p.submit(ctx, con, c)
	if err != nil {
		return err
	}
	if p.Async {
		return showID(con, job)
	}
	return (&watch{con: con, c: c, save: p.Save, wait: p.Wait}).run(ctx, job.ID, job.Pack)
}

// showID prints a job that goes on: its id, or its record as JSON.
func showID(con *console.Console, job jobs.Job) error {
	if con.JSON {
		return con.WriteJSON(job)
	}
	con.Say("%s", con.Dim("follow it: helmdeck job watch "+job.ID))
	return con.Print("%s", job.ID)
}
