package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

type jobBatch struct {
	File           string `arg:"" help:"File with one job a line, - for standard input."`
	Pack           string `placeholder:"NAME" help:"Each line is the input of this pack, instead of a job."`
	IdempotencyKey string `placeholder:"TEXT" help:"The same key and file give the same jobs, however often they are repeated."`
	caller
}

// Help shows with --help.
func (jobBatch) Help() string {
	return `A line is a JSON object as POST /api/v1/jobs takes it, such as {"pack":"http.fetch","input":{"url":"https://example.org/"}}, perhaps with an idempotency_key of its own. The ids are printed in the order of the lines; what was refused is told with its line and hinders no other.

Examples:

    helmdeck job batch jobs.jsonl
    jq -c '.urls[] | {url: .}' list.json | helmdeck job batch - --pack http.fetch
    helmdeck job batch jobs.jsonl --idempotency-key import-7`
}

// batchBytes bounds one request, below what the server takes at once.
const batchBytes = 24 << 20

// line is one job of a file, and where it stands.
type line struct {
	number int
	job    client.BatchJob
	size   int
}

// Run submits.
func (j *jobBatch) Run(ctx context.Context, con *console.Console) error {
	text, err := (&reader{con: con}).read(j.File)
	if err != nil {
		return misused("%w", err)
	}
	lines, err := j.lines(text)
	if err != nil {
		return err
	}
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	key := cmp.Or(j.IdempotencyKey, uuid.NewString())
	all := client.BatchResult{Jobs: []client.BatchAnswer{}}
	for part := 0; len(lines) > 0; part++ {
		n := cut(lines)
		batch := make([]client.BatchJob, n)
		for i := range batch {
			batch[i] = lines[i].job
		}
		// A key of its own for each request, the same when it is repeated.
		done, err := c.SubmitBatch(ctx, batch, jobs.ItemKey(key, part))
		if err != nil {
			return hinted(err, fmt.Sprintf("submitted before that: %d", all.Accepted))
		}
		if err := j.show(con, lines[:n], done, &all); err != nil {
			return err
		}
		lines = lines[n:]
	}
	return j.end(con, all)
}

// lines reads the jobs of the file, all of them before any is submitted.
func (j *jobBatch) lines(text []byte) ([]line, error) {
	var out []line
	var faults []packs.Detail
	name, version, err := nameAndVersion(j.Pack, "")
	if j.Pack != "" && err != nil {
		return nil, err
	}
	number := 0
	for raw := range bytes.Lines(text) {
		number++
		if raw = bytes.TrimSpace(raw); len(raw) == 0 {
			continue
		}
		l := line{number: number, size: len(raw)}
		var object map[string]json.RawMessage
		err := json.Unmarshal(raw, &object)
		switch {
		case err != nil || object == nil:
			faults = append(faults, packs.Detail{Pointer: fmt.Sprintf("line %d", number), Message: fmt.Sprintf("is no JSON object: %.60s", raw)})
			continue
		case j.Pack != "":
			l.job.Request = jobs.Request{Pack: name, Version: version, Input: raw}
		default:
			// A misspelt key must not vanish on the way.
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&l.job); err != nil {
				faults = append(faults, packs.Detail{Pointer: fmt.Sprintf("line %d", number), Message: strings.TrimPrefix(err.Error(), "json: ")})
				continue
			}
		}
		out = append(out, l)
	}
	switch {
	case len(faults) > 0:
		return nil, &failure{exit: exitInput, Code: string(packs.InvalidInput), Details: faults[:min(len(faults), 20)],
			Message: fmt.Sprintf("%d of %d lines are no jobs; nothing was submitted", len(faults), number)}
	case len(out) == 0:
		return nil, &failure{exit: exitInput, Code: string(packs.InvalidInput), Message: j.File + " holds no job"}
	}
	return out, nil
}

// cut says how many lines go into one request.
func cut(lines []line) int {
	size := 0
	for n, l := range lines {
		if size += l.size; n == jobs.MaxBatch || n > 0 && size > batchBytes {
			return n
		}
	}
	return len(lines)
}

// show prints what became of the lines of one request and adds it to all.
func (j *jobBatch) show(con *console.Console, lines []line, done client.BatchResult, all *client.BatchResult) error {
	for i := range done.Jobs {
		a := done.Jobs[i]
		if a.Index < 0 || a.Index >= len(lines) {
			return fmt.Errorf("read the answer: it names job %d of %d", a.Index, len(lines))
		}
		number := lines[a.Index].number
		a.Index = len(all.Jobs)
		all.Jobs = append(all.Jobs, a)
		if con.JSON {
			continue
		}
		if a.Error != nil {
			con.Say("line %d: %s: %s", number, a.Error.Error, console.Clean(a.Error.Message))
			continue
		}
		if err := con.Print("%s", a.Job.ID); err != nil {
			return err
		}
	}
	all.Accepted += done.Accepted
	all.Refused += done.Refused
	return nil
}

func (j *jobBatch) end(con *console.Console, all client.BatchResult) error {
	if con.JSON {
		if err := con.WriteJSON(all); err != nil {
			return err
		}
	}
	for i := range all.Jobs {
		if e := all.Jobs[i].Error; e != nil {
			return &failure{exit: exitOf(e.Error), Code: string(e.Error),
				Message: fmt.Sprintf("%d of %d jobs were refused; the others run", all.Refused, len(all.Jobs))}
		}
	}
	return nil
}
