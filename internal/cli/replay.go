package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

type deadReplay struct {
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of the jobs; or filters."`
	Input string   `placeholder:"JSON|@FILE|-" help:"Another input instead of the old one, for one job."`
	All   bool     `help:"All that were not replayed yet; the filters narrow it."`
	Again bool     `help:"With filters: those that were replayed before, too."`
	deadFilters
	Rate           float64 `placeholder:"N" help:"Run N of them a second, 0.01 to 1000; all at once by default."`
	Limit          int     `placeholder:"N" help:"With filters: at most so many, newest first."`
	IdempotencyKey string  `placeholder:"TEXT" help:"The same key replays each letter once, however often the command is repeated."`
	asking
	caller
}

// Help shows with --help.
func (deadReplay) Help() string {
	return `Prints the ids of the new jobs, one a line, in the order of the old ones. With filters instead of ids they are counted first, and replayed when you say yes. With --rate the new jobs are scheduled at once and run one after the other; nothing need wait for them.

Examples:

    helmdeck dead replay ID
    helmdeck dead replay ID --input @mended.json
    helmdeck dead replay --all --pack http.fetch --rate 5
    helmdeck dead replay --code timeout --since 24h --yes`
}

// Run replays.
func (d *deadReplay) Run(ctx context.Context, con *console.Console) error {
	filtered := d.All || d.given()
	switch {
	case filtered == (len(d.IDs) > 0):
		return misused("name the jobs, or filters (--all for every one)")
	case d.Input != "" && len(d.IDs) != 1:
		return misused("--input is for one job")
	case !filtered && (d.Again || d.Limit != 0):
		return misused("--again and --limit go with filters")
	case d.Limit < 0:
		return misused("--limit must be at least 1")
	}
	r := client.ReplayRequest{RatePerS: d.Rate}
	var err error
	if filtered {
		if r.DeadSelection, err = d.selection(); err != nil {
			return err
		}
		if !d.Again {
			no := false
			r.Replayed = &no
		}
	}
	if r.Input, err = inputOf(d.Input, &reader{con: con}); err != nil {
		return err
	}
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if filtered {
		if done, err := d.sure(con, "replay", "dead letters", func() (int, bool, error) {
			dry := r
			dry.DryRun, dry.Limit = true, min(d.Limit, jobs.MaxBatch)
			list, err := c.Replay(ctx, dry, "")
			return list.Matched, list.More && d.Limit == 0, err
		}); done {
			return err
		}
	}
	list, err := d.replay(ctx, c, r)
	// Some may have been replayed before an error.
	return errors.Join(showReplayed(con, list), err)
}

// replay goes through what was chosen, a call at a time.
func (d *deadReplay) replay(ctx context.Context, c *client.Client, r client.ReplayRequest) (client.ReplayList, error) {
	all := client.ReplayList{Replayed: []client.Replayed{}}
	key, left, ids := cmp.Or(d.IdempotencyKey, uuid.NewString()), d.Limit, d.IDs
	for {
		if len(d.IDs) > 0 {
			n := min(len(ids), jobs.MaxBatch)
			r.IDs, ids = ids[:n], ids[n:]
		} else {
			r.Limit = min(left, jobs.MaxBatch)
		}
		done, err := c.Replay(ctx, r, key)
		if err != nil {
			return all, err
		}
		all.Replayed = append(all.Replayed, done.Replayed...)
		all.Matched += done.Matched
		left -= done.Matched
		if r.RatePerS > 0 {
			r.StartAt = done.NextStartAt
		}
		switch {
		case len(d.IDs) > 0 && len(ids) == 0, len(d.IDs) == 0 && !done.More, d.Limit > 0 && left <= 0:
			return all, nil
		}
		r.Cursor = done.NextCursor
	}
}

func showReplayed(con *console.Console, list client.ReplayList) error {
	var failed []string
	var first *client.Problem
	for i := range list.Replayed {
		r := &list.Replayed[i]
		if r.Error != nil {
			if first == nil {
				first = r.Error
			}
			failed = append(failed, r.ID+": "+r.Error.Message)
			continue
		}
		if !con.JSON && r.Job != nil {
			if err := con.Print("%s", r.Job.ID); err != nil {
				return err
			}
		}
	}
	if con.JSON {
		if err := con.WriteJSON(list); err != nil {
			return err
		}
	}
	if first == nil {
		return nil
	}
	return &failure{
		exit: exitOf(first.Error), Code: string(first.Error), Details: first.Details,
		Message: fmt.Sprintf("%d of %d were not replayed:\n%s", len(failed), len(list.Replayed), strings.Join(failed, "\n")),
	}
}

type deadEdit struct {
	ID string `arg:"" help:"Id of the job."`
	caller
}

// Help shows with --help.
func (deadEdit) Help() string {
	return `Opens the input in VISUAL or EDITOR (vi by default), and runs the job again with what you save, if the pack takes it. What it does not take is kept in a file. A file left as it was, or empty, replays nothing.

Examples:

    helmdeck dead edit ID
    EDITOR="code --wait" helmdeck dead edit ID`
}

// Run edits.
func (d *deadEdit) Run(ctx context.Context, con *console.Console) error {
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.DeadLetter(ctx, d.ID)
	if err != nil {
		return err
	}
	if len(l.Submission.Input) == 0 {
		return hinted(packs.Errorf(packs.NotFound, "the input of this job is no longer kept"),
			"give another: helmdeck dead replay "+d.ID+" --input @FILE")
	}
	file, edited, err := edit(ctx, con, l.Submission.Input)
	if err != nil {
		return err
	}
	if edited == nil {
		con.Say("nothing was changed, nothing is replayed")
		return os.RemoveAll(filepath.Dir(file))
	}
	list, err := c.Replay(ctx, client.ReplayRequest{ID: d.ID, Input: edited}, uuid.NewString())
	if err != nil {
		return hinted(withPackHints(err, l.Submission.Job.Pack), "your text is in "+file,
			"once it is mended: helmdeck dead replay "+d.ID+" --input @"+file)
	}
	return errors.Join(showReplayed(con, list), os.RemoveAll(filepath.Dir(file)))
}

// edit lets the user change text, a JSON object, in a file of its own, which
// it leaves there. edited is nil when nothing was changed.
func edit(ctx context.Context, con *console.Console, text json.RawMessage) (file string, edited json.RawMessage, err error) {
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return "", nil, fmt.Errorf("read the input of the job: %w", err)
	}
	shown := indented.String()
	dir, err := os.MkdirTemp("", "helmdeck-edit-") // readable by nobody else
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the input: %w", err)
	}
	file = filepath.Join(dir, "input.json")
	if err := os.WriteFile(file, append(indented.Bytes(), '\n'), 0o600); err != nil {
		return "", nil, fmt.Errorf("write the input: %w", err)
	}
	editor := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(editor) == 0 {
		return "", nil, misused("VISUAL or EDITOR names no editor")
	}
	cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], file)...) //nolint:gosec // the user's own editor
	cmd.Stdin, cmd.Stdout, cmd.Stderr = con.In, con.Err, con.Err            // standard output is for the result
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", nil, misused("editor %s: %w; nothing is replayed", editor[0], err)
	}
	changed, err := os.ReadFile(file)
	if err != nil {
		return "", nil, fmt.Errorf("read what was edited: %w", err)
	}
	switch trimmed := strings.TrimSpace(string(changed)); {
	case trimmed == "" || trimmed == shown:
		return file, nil, nil
	case !strings.HasPrefix(trimmed, "{") || !json.Valid([]byte(trimmed)):
		return "", nil, hinted(packs.Errorf(packs.InvalidInput, "what you saved is no JSON object; nothing is replayed"), "your text is in "+file)
	default:
		return file, json.RawMessage(trimmed), nil
	}
}
