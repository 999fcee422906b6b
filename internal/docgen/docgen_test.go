package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFilesAreUpToDate(t *testing.T) {
	t.Parallel()
	made, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range made {
		got, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Errorf("%v; run ./task docs", err)
			continue
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
			t.Errorf("docs/%s is out of date (-generated +file), run ./task docs:\n%.4000s", name, diff)
		}
	}
}

func TestWriteTwiceIsTheSame(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if err := write(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"packs.md", "openapi.json"} {
		a, err := os.ReadFile(filepath.Join(first, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Errorf("%s comes out different each time", name)
		}
	}
	if err := write(filepath.Join(first, "missing")); err == nil {
		t.Error("no error for a folder that is not there")
	}
}
