// Package cli is the program helmdeck: a tree of commands, noun before verb,
// each a struct whose fields are its flags. Results go to standard output,
// talk to standard error; the exit code tells the class of an error (see
// failure.go and docs/cli.md).
//
// It is the body of a main, so it may import internal/app. Each noun has a
// file, which makes more files than a package usually has; what the commands
// share lies in folders below.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/cli/complete"
	"github.com/helmdeck/helmdeck/internal/cli/console"
)

// tree is every command.
type tree struct {
	Up     up     `cmd:"" group:"run" help:"Run everything in one process, with an embedded NATS server."`
	Demo   demo   `cmd:"" group:"run" help:"Render a deck to PDF by a job, from start to stop."`
	Doctor doctor `cmd:"" group:"run" help:"Look for what is missing on this machine."`

	Pack     pack      `cmd:"" group:"use" help:"List, show and run packs."`
	Job      job       `cmd:"" group:"use" help:"Submit, follow and stop jobs."`
	Schedule schedule  `cmd:"" group:"use" help:"Run jobs again and again."`
	Dead     dead      `cmd:"" group:"use" help:"Inspect and replay jobs that failed for good."`
	Webhook  webhook   `cmd:"" group:"use" help:"Tell other programs of events by HTTP."`
	Artifact artifact  `cmd:"" group:"use" help:"List, fetch and store files."`
	Event    event     `cmd:"" group:"use" help:"Follow events over NATS."`
	Pool     pool      `cmd:"" group:"use" help:"Show the load of the worker pools, pause and resume them."`
	Worker   workerCmd `cmd:"" group:"use" help:"List and drain workers."`

	Limits limitsCmd `cmd:"" group:"use" help:"Show your limits and what you take of them."`

	Audit      auditCmd   `cmd:"" group:"set" help:"Read, check and export the audit trail."`
	Bus        busCmd     `cmd:"" group:"set" help:"Set up and check the streams of a NATS server."`
	Context    contextCmd `cmd:"" group:"set" help:"Remember servers by name."`
	Completion completion `cmd:"" group:"set" help:"Print a script that completes commands in a shell."`
	Version    version    `cmd:"" group:"set" help:"Print the version of this program and of the server."`
}

// Main runs one command line and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "agent" {
		// The program inside a sidecar; the runtime starts it.
		return agent.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// From the first signal on, another one has its usual effect.
	context.AfterFunc(ctx, stop)
	return run(ctx, args, console.New(stdin, stdout, stderr))
}

// exited is what leaves the parser after it printed help.
type exited int

func run(ctx context.Context, args []string, con *console.Console) (code int) {
	defer func() {
		if r := recover(); r != nil {
			n, ok := r.(exited)
			if !ok {
				panic(r)
			}
			code = int(n)
		}
	}()
	parser := newParser(con)
	if len(args) > 0 && args[0] == complete.Command {
		return completeWords(ctx, parser.Model, args[1:], con)
	}
	k, err := parser.Parse(helpWords(args))
	if err != nil {
		return report(con, usage(parser, err))
	}
	k.BindTo(ctx, (*context.Context)(nil))
	err = k.Run()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		if k.Command() == "up" {
			return exitOK
		}
		return exitInterrupted
	}
	return report(con, err)
}

func newParser(con *console.Console) *kong.Kong {
	var commands tree
	parser, err := kong.New(&commands,
		kong.Name("helmdeck"),
		kong.Description("Packs as jobs: submit one, watch it run, get its artifact.\n\n"+
			"Exit codes: 0 done, 1 internal, 2 usage, 3 invalid input, 4 not allowed, 5 not found, "+
			"6 the job failed, 7 try again later, 8 no server, 130 interrupted."),
		kong.Writers(con.Out, con.Err), kong.Bind(con),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 100}),
		kong.Vars{"version": app.Version, "profile": "embedded", "server": defaultURL},
		kong.ExplicitGroups([]kong.Group{
			{Key: "run", Title: "Run:"}, {Key: "use", Title: "Use:"}, {Key: "set", Title: "Set up:"},
			{Key: "server", Title: "Which server, and how to answer:"}, {Key: "process", Title: "Process:"},
		}),
	)
	if err != nil {
		panic(err) // a mistake in the tree
	}
	return parser
}

// helpWords turns "help pack run" into "pack run --help".
func helpWords(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(args[1:len(args):len(args)], "--help")
	}
	return args
}

// usage says what is wrong with a command line, and where its help is.
func usage(parser *kong.Kong, err error) error {
	command := "helmdeck"
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		for node := parse.Context.Selected(); node != nil; node = node.Parent {
			if node.Type == kong.CommandNode {
				command = strings.TrimSpace("helmdeck " + pathOf(node))
				break
			}
		}
	}
	return &failure{exit: exitUsage, Code: "usage", Message: err.Error(), Hints: []string{"see: " + command + " --help"}}
}

// pathOf is the words of a command, without its arguments.
func pathOf(node *kong.Node) string {
	var words []string
	for ; node != nil && node.Type == kong.CommandNode; node = node.Parent {
		words = append([]string{node.Name}, words...)
	}
	return strings.Join(words, " ")
}
