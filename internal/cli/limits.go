package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// limitsCmd is helmdeck limits.
type limitsCmd struct {
	Show limitsShow `cmd:"" default:"withargs" help:"Show your limits and what you take of them."`
}

// Help shows with --help.
func (limitsCmd) Help() string {
	return `Examples:

    helmdeck limits
    helmdeck limits show -o json | jq .subject.use.waiting`
}

type limitsShow struct{ caller }

// Help shows with --help.
func (limitsShow) Help() string {
	return `WAITING counts queued, held, scheduled and retrying jobs, BYTES their inputs, each as used/allowed; "-" is no limit. Operators set limits with --limits FILE; see docs/limits.md.

Examples:

    helmdeck limits show
    helmdeck limits show -o json`
}

// Run shows.
func (l *limitsShow) Run(ctx context.Context, con *console.Console) error {
	c, err := l.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.Limits(ctx)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(got)
	}
	err = con.Fields("priority", string(got.Priority), "weight", strconv.Itoa(got.Weight))
	if err != nil {
		return err
	}
	return con.Table([]string{"OF", "NAME", "WAITING", "BYTES", "RUNNING", "SUBMITS A SECOND"},
		[][]string{limitRow("subject", got.Subject), limitRow("tenant", got.Tenant)})
}

func limitRow(of string, q client.Quota) []string {
	return []string{
		of, q.Name, share(int64(q.Use.Waiting), int64(q.Limits.Depth)), share(q.Use.Bytes, q.Limits.Bytes),
		share(int64(q.Use.Running), int64(q.Limits.Concurrent)), rateText(q),
	}
}

func share(used, allowed int64) string {
	if allowed == 0 {
		return fmt.Sprintf("%d/-", used)
	}
	return fmt.Sprintf("%d/%d", used, allowed)
}

func rateText(q client.Quota) string {
	if q.Limits.Rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%g, %d at once", q.Limits.Rate, q.Limits.Burst)
}
