package archtest

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Load reads every package below root, in order of folders. It parses the files
// itself instead of asking the go command, so that files behind build tags are
// judged as well and a package that does not compile at the moment is no obstacle.
func Load(root string) ([]Package, error) {
	byDir := map[string]*Package{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			// The go command ignores these as well; bin and node_modules are not code.
			ignored := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") ||
				name == "testdata" || name == "node_modules" || name == "bin"
			if ignored && file != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return fmt.Errorf("place %s in the tree: %w", file, err)
		}
		dir := path.Dir(filepath.ToSlash(rel))
		if byDir[dir] == nil {
			byDir[dir] = &Package{Dir: dir}
		}
		return byDir[dir].addFile(file)
	})
	if err != nil {
		return nil, fmt.Errorf("read the tree: %w", err)
	}
	packages := make([]Package, 0, len(byDir))
	for _, p := range byDir {
		slices.Sort(p.Imports)
		p.Imports = slices.Compact(p.Imports)
		packages = append(packages, *p)
	}
	slices.SortFunc(packages, func(a, b Package) int { return strings.Compare(a.Dir, b.Dir) })
	return packages, nil
}

func (p *Package) addFile(file string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
	if err != nil {
		return fmt.Errorf("parse %s: %w", file, err)
	}
	p.Name = parsed.Name.Name
	p.Lines += bytes.Count(src, []byte("\n"))
	for _, spec := range parsed.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("parse import %s in %s: %w", spec.Path.Value, file, err)
		}
		p.Imports = append(p.Imports, imp)
	}
	return nil
}
