// Package archtest holds the rules of the tree: which package may import which,
// which adapter alone may use a foreign library, and what a package may be called.
// Its test applies them to this repository, so that a wrong import fails the build
// of whoever adds it. The remedy is another design, not another rule.
//
// Test files are free: a test of a low layer may use the real thing from a higher one.
package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is the path of this repository's Go module.
const Module = "github.com/helmdeck/helmdeck"

// Package is what the rules need to know of one package of the tree.
type Package struct {
	// Dir is the folder relative to the root, with slashes: "pkg/jobs".
	Dir string
	// Name is the name in the package clause.
	Name string
	// Imports are the import paths of all non-test files, under any build tag.
	Imports []string
	// Lines counts the lines of all non-test files.
	Lines int
}

// Fault is one broken rule.
type Fault struct {
	// Dir is the package at fault.
	Dir string
	// Rule says what is broken and what is allowed.
	Rule string
}

func (f Fault) String() string { return f.Dir + ": " + f.Rule }

// maxMainLines keeps the mains to parsing, building, running and an exit code.
const maxMainLines = 80

// adapters maps a foreign library to the only folders that may import it.
var adapters = []struct {
	libraries []string
	folders   []string
}{
	{[]string{"github.com/nats-io", "github.com/synadia-io/orbit.go"}, []string{"internal/bus", "pkg/events"}},
	{[]string{"github.com/docker", "github.com/moby"}, []string{"pkg/sessions/docker"}},
	{[]string{"github.com/minio/minio-go"}, []string{"pkg/artifacts/s3"}},
	// The global logger: no folder may.
	{[]string{"github.com/rs/zerolog/log"}, nil},
}

// vagueNames say nothing of the noun a package owns.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc", "shared"}

// notFamilies are the folders of pkg/packs that hold no packs of their own.
var notFamilies = []string{"catalog", "packstest"}

// Check applies every rule to the packages and returns the broken ones, in order
// of the packages.
func Check(packages []Package) []Fault {
	var faults []Fault
	for _, p := range packages {
		report := func(format string, args ...any) {
			faults = append(faults, Fault{Dir: p.Dir, Rule: fmt.Sprintf(format, args...)})
		}
		for _, vague := range vagueNames {
			if p.Name == vague || path.Base(p.Dir) == vague {
				report("a package owns one noun and is named after it, not %q", vague)
			}
		}
		if within(p.Dir, "cmd") && p.Lines > maxMainLines {
			report("has %d lines; a main parses, builds, runs and exits in at most %d: move the rest to internal/app", p.Lines, maxMainLines)
		}
		for _, imp := range p.Imports {
			if dir, ok := ours(imp); ok {
				checkInner(p, dir, report)
			} else {
				checkForeign(p, imp, report)
			}
		}
	}
	return faults
}

// checkInner judges an import of another package of the tree.
func checkInner(p Package, dir string, report func(string, ...any)) {
	from, to := layerOf(p.Dir), layerOf(dir)
	if !slices.Contains(mayImport[from], to) {
		report("%s may not import %s (%s): imports point cmd, internal/cli, internal/app, internal, pkg", from, dir, to)
	}
	own, imported := family(p.Dir), family(dir)
	if own != "" && imported != "" && own != imported {
		report("pack family %s imports family %s: shared needs move to packs.Run", own, imported)
	}
	if own != "" && within(dir, "pkg/packs/catalog") {
		report("pack family %s imports the catalogue that lists it", own)
	}
}

// checkForeign judges an import from outside the tree.
func checkForeign(p Package, imp string, report func(string, ...any)) {
	if layerOf(p.Dir) == layerTool {
		return
	}
	for _, a := range adapters {
		if !slices.ContainsFunc(a.libraries, func(lib string) bool { return within(imp, lib) }) {
			continue
		}
		if !slices.ContainsFunc(a.folders, func(dir string) bool { return within(p.Dir, dir) }) {
			if len(a.folders) == 0 {
				report("imports %s: the logger is passed in or comes from the context", imp)
			} else {
				report("imports %s: only %s may", imp, strings.Join(a.folders, " and "))
			}
		}
	}
}

// layer is a part of the tree with its place in the direction of imports.
type layer string

const (
	layerCmd      layer = "cmd"
	layerCLI      layer = "internal/cli"
	layerApp      layer = "internal/app"
	layerInternal layer = "internal"
	layerPkg      layer = "pkg"
	layerSidecar  layer = "sidecar"
	layerTool     layer = "tool" // programs and suites of the repository itself
	layerOther    layer = "other"
)

// mayImport lists, for each layer, the layers below it. Nothing imports cmd, and
// nothing but tools imports tools.
var mayImport = map[layer][]layer{
	layerCmd: {layerCLI, layerApp, layerInternal, layerPkg},
	// The program helmdeck is too large for a main of eighty lines: internal/cli is
	// the body of that main, so it starts processes through the wiring as a main does.
	layerCLI:      {layerCLI, layerApp, layerInternal, layerPkg, layerOther},
	layerApp:      {layerApp, layerInternal, layerPkg},
	layerInternal: {layerInternal, layerPkg, layerOther},
	layerPkg:      {layerPkg, layerOther},
	// The agent must stay small: it shares contracts, not the wiring of the roles.
	layerSidecar: {layerSidecar, layerInternal, layerPkg},
	layerTool:    {layerTool, layerCLI, layerApp, layerInternal, layerPkg, layerSidecar, layerOther},
	layerOther:   {layerOther},
}

// toolFolders hold what builds, measures and tests the product and is no part of it.
var toolFolders = []string{"test", "bench", "deploy", "internal/archtest", "internal/docgen", "internal/testsummary"}

func layerOf(dir string) layer {
	if slices.ContainsFunc(toolFolders, func(t string) bool { return within(dir, t) }) {
		return layerTool
	}
	for _, l := range []layer{layerCmd, layerCLI, layerApp, layerInternal, layerPkg, layerSidecar} {
		if within(dir, string(l)) {
			return l
		}
	}
	// Embedded files beside the code, such as docs or web: data, importable by all
	// that serve them, importing nothing themselves.
	return layerOther
}

// family names the pack family a folder belongs to; "" when it belongs to none.
func family(dir string) string {
	rest, ok := strings.CutPrefix(dir, "pkg/packs/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	if slices.Contains(notFamilies, name) {
		return ""
	}
	return name
}

// ours returns the folder of an import path of this module.
func ours(imp string) (dir string, ok bool) {
	if imp == Module {
		return ".", true
	}
	return strings.CutPrefix(imp, Module+"/")
}

// within tells whether a path is the given one or lies below it.
func within(p, parent string) bool {
	return p == parent || strings.HasPrefix(p, parent+"/")
}
