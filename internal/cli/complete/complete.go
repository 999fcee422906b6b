// Package complete completes command lines: small scripts for three shells
// that all ask the program itself, and the answer, taken from the tree of
// commands.
package complete

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Command is the hidden first argument with which the scripts ask; the words
// of the command line follow, the unfinished one last.
const Command = "__complete"

// Values names the values a place can take that only the caller knows: the
// words of the command and the name of the argument, for instance "pack run"
// and "name". Nil means none.
type Values func(command, argument string) []string

// Words returns what the last word may become, one candidate each. None means
// that the shell may offer files.
func Words(app *kong.Application, words []string, values Values) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	at := walk(app.Node, before)
	switch {
	case at.awaits != nil:
		return matching(at.awaits.EnumSlice(), last)
	case strings.HasPrefix(last, "-"):
		name, value, ok := strings.Cut(strings.TrimPrefix(last, "--"), "=")
		if !ok {
			return matching(flagNames(at.node), last)
		}
		if f := flagOf(at.node, name); f != nil {
			return prefixed("--"+name+"=", matching(f.EnumSlice(), value))
		}
		return nil
	}
	var out []string
	for _, child := range at.node.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			out = append(out, child.Name)
		}
	}
	if n := at.positionals; len(out) == 0 && n < len(at.node.Positional) && values != nil {
		out = values(path(at.node), at.node.Positional[n].Name)
	} else if args := at.node.Positional; len(out) == 0 && len(args) > 0 && args[len(args)-1].IsCumulative() && values != nil {
		out = values(path(at.node), args[len(args)-1].Name)
	}
	return matching(out, last)
}

// place is where a command line has come to.
type place struct {
	node        *kong.Node
	positionals int        // that were given
	awaits      *kong.Flag // the last word was a flag that wants a value
}

func walk(root *kong.Node, words []string) place {
	at := place{node: root}
	for _, w := range words {
		if at.awaits != nil {
			at.awaits = nil
			continue
		}
		if strings.HasPrefix(w, "-") && w != "-" {
			name, _, hasValue := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if f := flagOf(at.node, name); f != nil && !hasValue && !f.IsBool() {
				at.awaits = f
			}
			continue
		}
		i := slices.IndexFunc(at.node.Children, func(c *kong.Node) bool { return c.Name == w })
		if i < 0 {
			at.positionals++
			continue
		}
		at = place{node: at.node.Children[i]}
	}
	return at
}

func flagsOf(node *kong.Node) []*kong.Flag {
	return slices.Concat(node.AllFlags(true)...)
}

func flagOf(node *kong.Node, name string) *kong.Flag {
	for _, f := range flagsOf(node) {
		if f.Name == name || f.Short != 0 && string(f.Short) == name {
			return f
		}
	}
	return nil
}

func flagNames(node *kong.Node) []string {
	var out []string
	for _, f := range flagsOf(node) {
		out = append(out, "--"+f.Name)
	}
	return out
}

func path(node *kong.Node) string {
	var words []string
	for ; node != nil && node.Type == kong.CommandNode; node = node.Parent {
		words = append([]string{node.Name}, words...)
	}
	return strings.Join(words, " ")
}

func matching(candidates []string, start string) []string {
	var out []string
	for _, c := range candidates {
		if c != "" && strings.HasPrefix(c, start) {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func prefixed(prefix string, words []string) []string {
	for i := range words {
		words[i] = prefix + words[i]
	}
	return words
}
