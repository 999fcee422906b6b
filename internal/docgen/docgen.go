// Command docgen writes the parts of the documentation that follow from the
// code: docs/packs.md and docs/openapi.json. ./task docs runs it from the root
// of the repository; its test fails when the files are out of date.
//
//	go run ./internal/docgen [DIRECTORY]
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/internal/reference"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/catalog"
)

func main() {
	dir := "docs"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := write(dir); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

// files makes every generated file, by name.
func files() (map[string][]byte, error) {
	all := packs.NewCatalog(catalog.All(catalog.Options{})...)
	pages, err := reference.Markdown(all.List())
	if err != nil {
		return nil, err
	}
	doc, err := api.Document("dev", all)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, doc, "", "  "); err != nil {
		return nil, fmt.Errorf("indent the OpenAPI document: %w", err)
	}
	indented.WriteByte('\n')
	return map[string][]byte{"packs.md": pages, "openapi.json": indented.Bytes()}, nil
}

func write(dir string) error {
	made, err := files()
	if err != nil {
		return err
	}
	for name, text := range made {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
