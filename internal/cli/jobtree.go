package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

type jobChildren struct {
	ID     string `arg:"" help:"Id of the parent."`
	State  string `placeholder:"STATE" help:"scheduled, queued, running, retrying, succeeded, failed or cancelled."`
	Limit  int    `default:"50" help:"Jobs on a page, 1 to 200."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (jobChildren) Help() string {
	return `Examples:

    helmdeck job children ID
    helmdeck job children ID --state failed --output json | jq -r '.jobs[].id'`
}

// Run lists.
func (j *jobChildren) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Job(ctx, j.ID); err != nil {
		return err // else a wrong id would look like a job without children
	}
	list, err := c.Jobs(ctx, jobs.Query{Parent: j.ID, State: jobs.State(j.State), Limit: j.Limit, Cursor: j.Cursor})
	if err != nil {
		return err
	}
	return showList(con, list)
}

type jobTree struct {
	ID    string `arg:"" help:"Id of the job at the top."`
	Limit int    `default:"50" help:"Children of one job to show, 1 to 200."`
	caller
}

// Help shows with --help.
func (jobTree) Help() string {
	return `Shows a job, the jobs it called, and theirs.

Examples:

    helmdeck job tree ID
    helmdeck job tree ID --output json | jq '.children[].job.state'`
}

// Run shows.
func (j *jobTree) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	top, err := c.Job(ctx, j.ID)
	if err != nil {
		return err
	}
	root := &branch{Job: top}
	if err := root.grow(ctx, c, j.Limit, 0); err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(root)
	}
	return root.print(con, 0)
}

// branch is a job with what it called, oldest first.
type branch struct {
	Job      jobs.Job  `json:"job"`
	Children []*branch `json:"children,omitempty"`
	// More children there are than are shown.
	More int `json:"more,omitempty"`
}

// maxTree is deeper than calls nest; parents may also be named by callers.
const maxTree = 2 * jobs.MaxDepth

func (b *branch) grow(ctx context.Context, c *client.Client, limit, depth int) error {
	n := total(b.Job.Children)
	if n == 0 || depth == maxTree {
		return nil
	}
	list, err := c.Jobs(ctx, jobs.Query{Parent: b.Job.ID, Limit: limit})
	if err != nil {
		return err
	}
	b.More = max(n-len(list.Jobs), 0)
	for _, job := range slices.Backward(list.Jobs) {
		child := &branch{Job: job}
		if err := child.grow(ctx, c, limit, depth+1); err != nil {
			return err
		}
		b.Children = append(b.Children, child)
	}
	return nil
}

func (b *branch) print(con *console.Console, depth int) error {
	indent := strings.Repeat("  ", depth)
	line := fmt.Sprintf("%s%s  %s  %s", indent, b.Job.ID, b.Job.Pack, b.Job.State)
	if r := remark(&b.Job); r != "" {
		line += "  " + con.Dim(console.CleanText(r))
	}
	if err := con.Print("%s", line); err != nil {
		return err
	}
	for _, child := range b.Children {
		if err := child.print(con, depth+1); err != nil {
			return err
		}
	}
	if b.More > 0 {
		return con.Print("%s  … %d more: helmdeck job children %s", indent, b.More, b.Job.ID)
	}
	return nil
}

func total(counts map[jobs.State]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// childCounts is "3 succeeded, 1 running", empty for none.
func childCounts(counts map[jobs.State]int) string {
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
	}
	return strings.Join(parts, ", ")
}
