package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/reference"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// pack is helmdeck pack.
type pack struct {
	List packList `cmd:"" help:"List the packs."`
	Show packShow `cmd:"" help:"Show what a pack takes and gives."`
	Run  packRun  `cmd:"" help:"Run a pack and wait for its result."`
}

// Help shows with --help.
func (pack) Help() string {
	return `A pack is a capability with a name, a typed input and a typed output; running one is a job.

Examples:

    helmdeck pack list
    helmdeck pack show http.fetch
    helmdeck pack run http.fetch url=https://example.org/`
}

type packList struct {
	Pool string `placeholder:"NAME" help:"Packs of this pool only."`
	caller
}

// Help shows with --help.
func (packList) Help() string {
	return `Examples:

    helmdeck pack list
    helmdeck pack list --output json | jq -r '.[].name'`
}

// Run lists.
func (p *packList) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Packs(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(k client.Pack) bool { return p.Pool != "" && string(k.Pool) != p.Pool })
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list))
	for i := range list {
		k := &list[i]
		summary := k.Summary
		if !k.Available {
			summary = "not available: " + k.Reason
		}
		rows[i] = []string{k.Name, k.Latest, string(k.Pool), summary}
	}
	return con.Table([]string{"NAME", "VERSION", "POOL", "SUMMARY"}, rows)
}

type packShow struct {
	Name    string `arg:"" help:"Name of the pack; NAME@v2 is that version."`
	Version string `placeholder:"vN" help:"Version; the newest by default."`
	caller
}

// Help shows with --help.
func (packShow) Help() string {
	return `Examples:

    helmdeck pack show slides.render
    helmdeck pack show slides.render --output json | jq .input_schema`
}

// Run shows.
func (p *packShow) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	name, version, err := nameAndVersion(p.Name, p.Version)
	if err != nil {
		return err
	}
	k, err := c.Pack(ctx, name, version)
	if err != nil {
		return hinted(err, "the packs there are: helmdeck pack list")
	}
	if con.JSON {
		return con.WriteJSON(k)
	}
	return showPack(con, &k)
}

// nameAndVersion splits NAME@v2.
func nameAndVersion(name, version string) (string, string, error) {
	base, v, ok := strings.Cut(name, "@")
	switch {
	case !ok:
		return name, version, nil
	case version != "" && version != v:
		return "", "", misused("the name asks for version %s, --version for %s", v, version)
	}
	return base, v, nil
}

func showPack(con *console.Console, k *client.Pack) error {
	unavailable := ""
	if !k.Available {
		unavailable = "no: " + k.Reason
	}
	codes := make([]string, len(k.Errors))
	for i, c := range k.Errors {
		codes[i] = string(c)
	}
	description := k.Description
	if description == k.Summary {
		description = ""
	}
	err := con.Fields(
		"name", k.Name, "version", k.Latest+" of "+strings.Join(k.Versions, ", "), "summary", k.Summary, "about", description,
		"available", unavailable, "pool", string(k.Pool), "needs", needs(k.Needs), "effect", string(k.Effect),
		"timeout", fmt.Sprintf("%d s an attempt, at most %d attempts", k.TimeoutS, k.MaxAttempts),
		"input", "at most "+console.Bytes(k.MaxInputBytes), "errors", strings.Join(codes, ", "),
	)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		title  string
		schema json.RawMessage
	}{{"INPUT", k.InputSchema}, {"OUTPUT", k.OutputSchema}} {
		if err := showSchema(con, part.title, part.schema); err != nil {
			return err
		}
	}
	for _, e := range k.Examples {
		if err := con.Print("\n%s:\n    helmdeck pack run %s --input '%s'", console.Clean(e.Title), k.Name,
			strings.ReplaceAll(console.Clean(string(e.Input)), "'", `'\''`)); err != nil {
			return err
		}
	}
	return nil
}

func needs(n packs.Needs) string {
	var out []string
	if n.Session != nil {
		out = append(out, "a session ("+n.Session.Image+")")
	}
	if n.Egress {
		out = append(out, "the network")
	}
	if n.Artifacts {
		out = append(out, "artifacts")
	}
	return strings.Join(out, ", ")
}

func showSchema(con *console.Console, title string, schema json.RawMessage) error {
	fields, err := reference.Fields(schema)
	if err != nil {
		return fmt.Errorf("read the pack's schema: %w", err)
	}
	rows := make([][]string, len(fields))
	for i, f := range fields {
		required := ""
		if f.Required {
			required = "required"
		}
		rows[i] = []string{f.Name, f.Type, required, f.Default, strings.TrimSpace(f.Description + " " + f.Limits)}
	}
	if err := con.Print(""); err != nil {
		return err
	}
	return con.Table([]string{title, "TYPE", "", "DEFAULT", "MEANING"}, rows)
}
