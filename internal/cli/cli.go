// Package cli is the command tree of the program helmdeck.
package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/app/flags"
)

// Main runs one command line and returns the exit code.
func Main(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "agent" {
		// The program inside a sidecar; the runtime starts it.
		return agent.Main()
	}
	var tree struct {
		Up Up `cmd:"" help:"Run everything in one process."`
	}
	p, err := kong.New(&tree, kong.Name("helmdeck"), kong.Writers(stdout, stderr), kong.Vars{"version": app.Version, "profile": "embedded"})
	if err != nil {
		panic(err)
	}
	k, err := p.Parse(args)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	return flags.Run("helmdeck", func(ctx context.Context) error {
		k.BindTo(ctx, (*context.Context)(nil))
		k.BindTo(stderr, (*io.Writer)(nil))
		return k.Run()
	})
}
