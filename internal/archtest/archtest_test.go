package archtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/archtest"
)

// TestTree applies the rules to this repository.
func TestTree(t *testing.T) {
	t.Parallel()
	packages, err := archtest.Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range packages {
		seen[p.Dir] = true
	}
	// Guards against a walk that looked at nothing.
	for _, dir := range []string{"internal/archtest", "pkg/jobs", "pkg/events", "internal/bus"} {
		if !seen[dir] {
			t.Errorf("package %s was not seen, among %d", dir, len(packages))
		}
	}
	for _, fault := range archtest.Check(packages) {
		t.Error(fault)
	}
}

// TestCheck shows that every rule can fail, and what it lets pass.
func TestCheck(t *testing.T) {
	t.Parallel()
	const m = archtest.Module + "/"
	tests := []struct {
		name string
		dir  string
		pkg  string // the last part of dir when empty
		imps []string
		line int
		want string // part of the one fault; "" when there must be none
	}{
		{name: "cmd imports downwards", dir: "cmd/api", imps: []string{m + "internal/app", m + "pkg/jobs"}},
		{name: "cmd imports its body", dir: "cmd/helmdeck", imps: []string{m + "internal/cli"}},
		{name: "the body of a main starts processes", dir: "internal/cli", imps: []string{m + "internal/app", m + "internal/app/flags"}},
		{name: "a part of the body does too", dir: "internal/cli/doctor", imps: []string{m + "internal/app", m + "internal/cli/console"}},
		{name: "nothing below imports the body", dir: "internal/api", imps: []string{m + "internal/cli/console"}, want: "internal may not import internal/cli"},
		{name: "the wiring imports no body", dir: "internal/app", imps: []string{m + "internal/cli"}, want: "internal/app may not import internal/cli"},
		{name: "the body imports no main", dir: "internal/cli", imps: []string{m + "cmd/api"}, want: "internal/cli may not import cmd/api"},
		{name: "app imports internal", dir: "internal/app", imps: []string{m + "internal/api", m + "internal/app/cli"}},
		{name: "internal imports pkg", dir: "internal/worker", imps: []string{m + "internal/bus", m + "pkg/jobs"}},
		{name: "pkg imports pkg", dir: "pkg/jobs", imps: []string{m + "pkg/events"}},
		{name: "agent shares contracts", dir: "sidecar/agent", imps: []string{m + "pkg/sessions", m + "internal/egress"}},
		{name: "pkg imports internal", dir: "pkg/jobs", imps: []string{m + "internal/bus"}, want: "pkg may not import internal/bus"},
		{name: "pkg imports app", dir: "pkg/client", imps: []string{m + "internal/app"}, want: "pkg may not import internal/app"},
		{name: "pkg imports cmd", dir: "pkg/client", imps: []string{m + "cmd/helmdeck"}, want: "pkg may not import cmd/helmdeck"},
		{name: "internal imports app", dir: "internal/worker", imps: []string{m + "internal/app"}, want: "internal may not import internal/app"},
		{name: "internal imports cmd", dir: "internal/api", imps: []string{m + "cmd/api"}, want: "internal may not import cmd/api"},
		{name: "app imports cmd", dir: "internal/app", imps: []string{m + "cmd/api"}, want: "internal/app may not import cmd/api"},
		{name: "cmd imports cmd", dir: "cmd/helmdeck", imps: []string{m + "cmd/api"}, want: "cmd may not import cmd/api"},
		{name: "agent imports the wiring", dir: "sidecar/agent", imps: []string{m + "internal/app"}, want: "sidecar may not import internal/app"},
		{name: "product imports a tool", dir: "internal/app", imps: []string{m + "bench"}, want: "may not import bench"},

		{name: "family imports packs", dir: "pkg/packs/slides", imps: []string{m + "pkg/packs", m + "pkg/artifacts"}},
		{name: "family imports its own part", dir: "pkg/packs/slides", imps: []string{m + "pkg/packs/slides/deck"}},
		{name: "catalogue imports families", dir: "pkg/packs/catalog", imps: []string{m + "pkg/packs/slides", m + "pkg/packs/browser"}},
		{name: "family imports family", dir: "pkg/packs/slides", imps: []string{m + "pkg/packs/browser"}, want: "family slides imports family browser"},
		{name: "part imports other family", dir: "pkg/packs/slides/deck", imps: []string{m + "pkg/packs/av"}, want: "family slides imports family av"},
		{name: "family imports catalogue", dir: "pkg/packs/slides", imps: []string{m + "pkg/packs/catalog"}, want: "imports the catalogue"},

		{name: "bus imports nats", dir: "internal/bus/jobstore", imps: []string{"github.com/nats-io/nats.go/jetstream"}},
		{name: "events import nats", dir: "pkg/events", imps: []string{"github.com/nats-io/nats.go"}},
		{name: "benchmarks import nats", dir: "bench", imps: []string{"github.com/nats-io/nats.go"}},
		{name: "worker imports nats", dir: "internal/worker", imps: []string{"github.com/nats-io/nats.go"}, want: "only internal/bus and pkg/events may"},
		{name: "app imports the server", dir: "internal/app", imps: []string{"github.com/nats-io/nats-server/v2/server"}, want: "only internal/bus and pkg/events may"},
		{name: "neighbour imports orbit", dir: "internal/business", imps: []string{"github.com/synadia-io/orbit.go/jetstreamext"}, want: "only internal/bus and pkg/events may"},
		{name: "docker in its place", dir: "pkg/sessions/docker", imps: []string{"github.com/docker/docker/client"}},
		{name: "docker elsewhere", dir: "pkg/sessions", imps: []string{"github.com/docker/docker/client"}, want: "only pkg/sessions/docker may"},
		{name: "minio in its place", dir: "pkg/artifacts/s3", imps: []string{"github.com/minio/minio-go/v7"}},
		{name: "minio elsewhere", dir: "pkg/artifacts", imps: []string{"github.com/minio/minio-go/v7"}, want: "only pkg/artifacts/s3 may"},
		{name: "minio's other modules are free", dir: "internal/api", imps: []string{"github.com/minio/highwayhash"}},
		{name: "logger passed in", dir: "internal/api", imps: []string{"github.com/rs/zerolog"}},
		{name: "global logger", dir: "internal/bus", imps: []string{"github.com/rs/zerolog/log"}, want: "the logger is passed in"},

		{name: "vague folder", dir: "internal/util", want: `not "util"`},
		{name: "vague clause", dir: "pkg/things", pkg: "types", want: `not "types"`},
		{name: "short main", dir: "cmd/worker", pkg: "main", line: 80},
		{name: "long main", dir: "cmd/worker", pkg: "main", line: 81, want: "has 81 lines"},
		{name: "long package elsewhere", dir: "internal/app", line: 800},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := archtest.Package{Dir: tt.dir, Name: tt.pkg, Imports: tt.imps, Lines: tt.line}
			if p.Name == "" {
				p.Name = filepath.Base(tt.dir)
			}
			faults := archtest.Check([]archtest.Package{p})
			if tt.want == "" {
				if len(faults) != 0 {
					t.Errorf("got %v, want no fault", faults)
				}
				return
			}
			if len(faults) != 1 || faults[0].Dir != tt.dir || !strings.Contains(faults[0].String(), tt.want) {
				t.Errorf("got %v, want one fault of %s with %q", faults, tt.dir, tt.want)
			}
		})
	}
}

// TestLoad shows that tags hide nothing, and that tests and foreign folders are left out.
func TestLoad(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for file, text := range map[string]string{
		"pkg/a/a.go":            "package a\n\nimport \"fmt\"\n",
		"pkg/a/planted.go":      "//go:build planted\n\npackage a\n\nimport \"os\"\n",
		"pkg/a/a_test.go":       "package a_test\n\nimport \"testing\"\n",
		"pkg/a/testdata/b.go":   "package b\n",
		".tools/x/x.go":         "package x\n",
		"web/node_modules/y.go": "package y\n",
	} {
		full := filepath.Join(root, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(full), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := archtest.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []archtest.Package{{Dir: "pkg/a", Name: "a", Imports: []string{"fmt", "os"}, Lines: 8}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}
