package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Markdown writes the reference of packs, one section a pack, families apart.
func Markdown(all []packs.Pack) ([]byte, error) {
	var b strings.Builder
	b.WriteString("# Packs\n\n" +
		"<!-- Written by ./task docs from the packs themselves: change those. -->\n\n" +
		"Every pack of this version: what it takes, what it gives, how it can fail. Call one with\n" +
		"`POST /api/v1/packs/NAME` and the input as the body, or `helmdeck pack run NAME key=value …`.\n" +
		"Unknown keys are ignored and named in the result's `warnings`; an explicit `null` on an optional key means absent.\n" +
		"A failed call answers with one of the pack's codes; what each means is in the section *Codes* below.\n\n" +
		"| Pack | Pool | |\n|---|---|---|\n")
	for _, p := range all {
		info := p.Info()
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", info.Name, anchor(info), info.Pool, cell(info.Summary))
	}
	for _, p := range all {
		if err := section(&b, p.Info()); err != nil {
			return nil, fmt.Errorf("describe %s: %w", p.Info().Name, err)
		}
	}
	codes(&b, all)
	return []byte(b.String()), nil
}

func title(info packs.Info) string { return info.Name + " " + info.Version }

// anchor is how the page's readers name a heading: lower case, without dots,
// spaces as dashes.
func anchor(info packs.Info) string {
	return strings.NewReplacer(".", "", " ", "-").Replace(strings.ToLower(title(info)))
}

func section(b *strings.Builder, info packs.Info) error {
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", title(info), strings.TrimSuffix(info.Summary, "."))
	if info.Description != "" {
		fmt.Fprintf(b, "\n%s\n", info.Description)
	}
	fmt.Fprintf(b, "\nPool %s · at most %d s an attempt · at most %d attempts · input up to %s%s%s\n",
		info.Pool, int(info.Timeout.Seconds()), info.MaxAttempts, size(info.MaxInputBytes), needs(info.Needs), effect(info.Effect))
	for _, part := range []struct {
		name   string
		schema json.RawMessage
	}{{"Input", info.Input}, {"Output", info.Output}} {
		fields, err := Fields(part.schema)
		if err != nil {
			return err
		}
		table(b, part.name, fields)
	}
	names := make([]string, len(info.Errors))
	for i, c := range info.Errors {
		names[i] = "`" + string(c) + "`"
	}
	slices.Sort(names)
	fmt.Fprintf(b, "\n**Errors**: %s\n", strings.Join(names, ", "))
	for _, e := range info.Examples {
		var text bytes.Buffer
		if err := json.Indent(&text, e.Input, "", "  "); err != nil {
			return err
		}
		fmt.Fprintf(b, "\n**Example**: %s\n\n```json\n%s\n```\n", e.Title, &text)
	}
	return nil
}

func table(b *strings.Builder, name string, fields []Field) {
	if len(fields) == 0 {
		fmt.Fprintf(b, "\n**%s**: none\n", name)
		return
	}
	fmt.Fprintf(b, "\n**%s**\n\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n", name)
	for _, f := range fields {
		standard := ""
		switch {
		case f.Default != "":
			standard = "`" + f.Default + "`"
		case f.Required && name == "Input":
			standard = "required"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, cell(standard), cell(strings.TrimSpace(f.Description+" "+f.Limits)))
	}
}

// cell is text that fits into a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}

func size(n int64) string {
	const mib = 1 << 20
	if n%mib == 0 {
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d bytes", n)
}

func needs(n packs.Needs) string {
	var out []string
	if n.Session != nil {
		out = append(out, "a session of image "+n.Session.Image)
	}
	if n.Egress {
		out = append(out, "the network")
	}
	if n.Artifacts {
		out = append(out, "artifacts")
	}
	if len(out) == 0 {
		return ""
	}
	return " · needs " + strings.Join(out, ", ")
}

func effect(e packs.Effect) string {
	switch e {
	case packs.EffectKeyed:
		return " · running again is safe: the job's id goes along as a key"
	case packs.EffectOnce:
		return " · its effect must not repeat: it is never blindly run again"
	}
	return ""
}

// meanings says in a line what a caller makes of a code.
var meanings = map[packs.Code]string{
	packs.InvalidInput:       "the input is at fault; `details` names each fault; also a refused address",
	packs.CredentialInvalid:  "a stored secret was refused where it was used",
	packs.SchemaMismatch:     "what the call is about has changed; look again, then call again",
	packs.SessionUnavailable: "no sidecar could be had in time",
	packs.ResourceExhausted:  "memory or processes ran out",
	packs.RateLimited:        "too much at once; wait for `retry_after_s`",
	packs.Timeout:            "it was not done in time",
	packs.ArtifactFailed:     "a file could not be stored or read",
	packs.HandlerFailed:      "the pack could not do it; the message says why",
	packs.InvalidOutput:      "the pack's own output was wrong; a fault to report",
	packs.Cancelled:          "somebody cancelled the job",
	packs.OutcomeUnknown:     "an effect that must not repeat was begun, and its worker lost; look before you call again",
	packs.NotFound:           "what the input names is not there",
	packs.Forbidden:          "the caller may not",
	packs.Internal:           "a fault of the system; its log has more",
}

func codes(b *strings.Builder, all []packs.Pack) {
	used := map[packs.Code]bool{}
	for _, p := range all {
		for _, c := range p.Info().Errors {
			used[c] = true
		}
	}
	names := make([]string, 0, len(used))
	for c := range used {
		names = append(names, string(c))
	}
	slices.Sort(names)
	b.WriteString("\n## Codes\n\n| Code | HTTP | The same call may succeed later | Meaning |\n|---|---|---|---|\n")
	for _, name := range names {
		c := packs.Code(name)
		again := "no"
		if c.Retryable() {
			again = "yes"
		}
		fmt.Fprintf(b, "| `%s` | %d | %s | %s |\n", c, c.HTTPStatus(), again, meanings[c])
	}
}
