package cli

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/helmdeck/helmdeck/internal/cli/complete"
	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// completion is helmdeck completion.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help shows with --help.
func (completion) Help() string {
	return `Completes commands, flags, names of packs, ids of jobs and names of contexts.

Examples:

    source <(helmdeck completion bash)
    helmdeck completion zsh > ~/.zfunc/_helmdeck
    helmdeck completion fish > ~/.config/fish/completions/helmdeck.fish`
}

// Run prints.
func (c *completion) Run(con *console.Console) error {
	text, err := complete.Script(c.Shell)
	if err != nil {
		return misused("%w", err)
	}
	return con.Print("%s", strings.TrimSuffix(text, "\n"))
}

// completeWithin bounds the wait of somebody who pressed Tab.
const completeWithin = 2 * time.Second

// completeWords answers a completion script.
func completeWords(ctx context.Context, model *kong.Application, words []string, con *console.Console) int {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	for _, w := range complete.Words(model, words, func(command, argument string) []string {
		return valuesOf(ctx, callerOf(words), command, argument)
	}) {
		if err := con.Print("%s", console.Clean(w)); err != nil {
			return exitInternal
		}
	}
	return exitOK
}

// valuesOf asks the server, or the files, for names that complete an argument.
// Whoever presses Tab wants no error: what cannot be had is left out.
func valuesOf(ctx context.Context, from *caller, command, argument string) []string {
	noun, verb, _ := strings.Cut(command, " ")
	switch {
	case noun == "context" && (verb == "use" || verb == "remove"):
		_, f, err := openContexts()
		if err != nil {
			return nil
		}
		return f.Names()
	case argument != "name" && argument != "id":
		return nil
	case noun == "pack", command == "job submit":
		return ask(ctx, from, func(c *client.Client) (names []string, err error) {
			list, err := c.Packs(ctx)
			for i := range list {
				names = append(names, list[i].Name)
			}
			return names, err
		})
	case noun == "job":
		return ask(ctx, from, func(c *client.Client) (ids []string, err error) {
			list, err := c.Jobs(ctx, jobs.Query{Limit: 50})
			for i := range list.Jobs {
				ids = append(ids, list.Jobs[i].ID)
			}
			return ids, err
		})
	case noun == "dead":
		return ask(ctx, from, func(c *client.Client) (ids []string, err error) {
			list, err := c.DeadLetters(ctx, jobs.DeadQuery{Limit: 50})
			for i := range list.Dead {
				ids = append(ids, list.Dead[i].Submission.Job.ID)
			}
			return ids, err
		})
	}
	return nil
}

// callerOf reads the flags that name a server out of an unfinished command.
func callerOf(words []string) *caller {
	c := &caller{Data: cmp.Or(os.Getenv("HELMDECK_DATA"), "helmdeck-data")}
	flags := map[string]*string{"--url": &c.URL, "--token-file": &c.TokenFile, "--context": &c.Context, "--data": &c.Data}
	for i, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok && i+1 < len(words) {
			value = words[i+1]
		}
		if field := flags[name]; field != nil {
			*field = value
		}
	}
	return c
}

func ask(ctx context.Context, from *caller, question func(*client.Client) ([]string, error)) []string {
	c, err := from.connect()
	if err != nil {
		return nil
	}
	defer c.Close()
	if r, err := c.Ready(ctx); err != nil || r.Status != "ready" {
		return nil // asks once, unlike other calls
	}
	answer, err := question(c)
	if err != nil {
		return nil
	}
	return answer
}
