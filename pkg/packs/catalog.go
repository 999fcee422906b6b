package packs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Catalog is a fixed set of packs, found by name and version.
type Catalog struct {
	packs map[string][]Pack // by name, oldest version first
}

// NewCatalog makes a catalogue. It panics when a name and version appear
// twice, which is a mistake of the programmer.
func NewCatalog(packs ...Pack) *Catalog {
	c := &Catalog{packs: make(map[string][]Pack)}
	for _, p := range packs {
		info := p.Info()
		for _, other := range c.packs[info.Name] {
			if other.Info().Version == info.Version {
				panic(fmt.Sprintf("packs: %s@%s is in the catalogue twice", info.Name, info.Version))
			}
		}
		c.packs[info.Name] = append(c.packs[info.Name], p)
	}
	for _, versions := range c.packs {
		slices.SortFunc(versions, func(a, b Pack) int { return cmp.Compare(number(a), number(b)) })
	}
	return c
}

func number(p Pack) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(p.Info().Version, "v"))
	return n
}

// Get finds a pack. An empty version or "latest" is the newest; "v2" or "2"
// is that one. name may carry the version itself: "http.fetch@v2". Failure is
// a not_found Error that names what is close.
func (c *Catalog) Get(name, version string) (Pack, error) {
	if base, v, ok := strings.Cut(name, "@"); ok {
		if version != "" && version != v {
			return nil, Errorf(InvalidInput, "the pack name asks for version %q, the version field for %q; give one of them", v, version)
		}
		name, version = base, v
	}
	versions := c.packs[name]
	if len(versions) == 0 {
		message := fmt.Sprintf("there is no pack named %q", shorten(name, 100))
		if near := Nearest(name, c.Names()); len(near) > 0 {
			message += "; did you mean " + strings.Join(near, " or ") + "?"
		} else {
			message += "; list the packs to see their names"
		}
		return nil, &Error{Code: NotFound, Message: message}
	}
	if version == "" || version == "latest" {
		return versions[len(versions)-1], nil
	}
	have := make([]string, len(versions))
	for i, p := range versions {
		if have[i] = p.Info().Version; strings.TrimPrefix(version, "v") == strings.TrimPrefix(have[i], "v") {
			return p, nil
		}
	}
	return nil, Errorf(NotFound, "pack %s has no version %q; it has %s", name, shorten(version, 40), strings.Join(have, ", "))
}

// Names lists the names of all packs that are not hidden, in order.
func (c *Catalog) Names() []string {
	var out []string
	for _, p := range c.List() {
		if name := p.Info().Name; len(out) == 0 || out[len(out)-1] != name {
			out = append(out, name)
		}
	}
	return out
}

// List returns every version of every pack that is not hidden, by name and
// then version.
func (c *Catalog) List() []Pack { return c.list(false) }

// ListAll is List with the hidden packs.
func (c *Catalog) ListAll() []Pack { return c.list(true) }

func (c *Catalog) list(hidden bool) []Pack {
	var out []Pack
	for _, versions := range c.packs {
		for _, p := range versions {
			if hidden || !p.Info().Hidden {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b Pack) int {
		return cmp.Or(cmp.Compare(a.Info().Name, b.Info().Name), cmp.Compare(number(a), number(b)))
	})
	return out
}

// Nearest returns up to three of known that a person may have meant by name,
// the closest first; none when nothing is close.
func Nearest(name string, known []string) []string {
	// Longer than any real name: comparing it would only cost time.
	if len(name) > 100 {
		return nil
	}
	type match struct {
		name     string
		distance int
	}
	var matches []match
	wanted := fold(name)
	for _, k := range known {
		d := distance(wanted, fold(k))
		if d <= max(1, len(wanted)/3) {
			matches = append(matches, match{k, d})
		}
	}
	slices.SortStableFunc(matches, func(a, b match) int { return cmp.Compare(a.distance, b.distance) })
	var out []string
	for _, m := range matches[:min(3, len(matches))] {
		out = append(out, m.name)
	}
	return out
}

// fold removes what people get wrong most: case and separators.
func fold(s string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(strings.ToLower(s))
}

// distance is the number of edits between a and b, a swap of two neighbouring
// bytes being one (optimal string alignment).
func distance(a, b string) int {
	var before []int // the row before the last
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			if a[i] == b[j] {
				row[j+1] = last[j]
			} else {
				row[j+1] = 1 + min(last[j], last[j+1], row[j])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], 1+before[j-1])
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
