package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReport(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		events []string
		want   []string
		failed bool
	}{
		{
			name: "a passing package is one line and its chatter is gone",
			events: []string{
				`{"Action":"start","Package":"m/a"}`,
				`{"Action":"run","Package":"m/a","Test":"TestOK"}`,
				`{"Action":"output","Package":"m/a","Test":"TestOK","Output":"=== RUN   TestOK\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestOK","Output":"chatter\n"}`,
				`{"Action":"pass","Package":"m/a","Test":"TestOK"}`,
				`{"Action":"output","Package":"m/a","Output":"PASS\n"}`,
				`{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}`,
				`{"Action":"pass","Package":"m/a"}`,
			},
			want: []string{"ok  \tm/a\t0.1s", "", "1 packages ok, 0 failed; 1 tests passed, 0 failed, 0 skipped"},
		},
		{
			name: "a failing test shows its output",
			events: []string{
				`{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:3: got 1, want 2\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}`,
				`{"Action":"fail","Package":"m/a","Test":"TestBad"}`,
				`{"Action":"output","Package":"m/a","Output":"FAIL\n"}`,
				`{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}`,
				`{"Action":"fail","Package":"m/a"}`,
			},
			want: []string{
				"    a_test.go:3: got 1, want 2", "--- FAIL: TestBad (0.00s)", "FAIL", "FAIL\tm/a\t0.1s", "FAIL", "",
				"0 packages ok, 1 failed; 0 tests passed, 1 failed, 0 skipped",
			},
			failed: true,
		},
		{
			name: "a test that was running when its package died is shown",
			events: []string{
				`{"Action":"output","Package":"m/a","Test":"TestHang","Output":"panic: test timed out\n"}`,
				`{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t9s\n"}`,
				`{"Action":"fail","Package":"m/a"}`,
			},
			want: []string{
				"panic: test timed out", "FAIL\tm/a\t9s", "FAIL", "",
				"0 packages ok, 1 failed; 0 tests passed, 0 failed, 0 skipped",
			},
			failed: true,
		},
		{
			name: "skips are named with their reason",
			events: []string{
				`{"Action":"output","Package":"m/a","Test":"TestS/b","Output":"=== RUN   TestS/b\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestS/b","Output":"    a_test.go:9: no engine: docker\n"}`,
				`{"Action":"output","Package":"m/a","Test":"TestS/b","Output":"--- SKIP: TestS/b (0.00s)\n"}`,
				`{"Action":"skip","Package":"m/a","Test":"TestS/b"}`,
				`{"Action":"skip","Package":"m/a","Test":"TestMute"}`,
				`{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}`,
				`{"Action":"pass","Package":"m/a"}`,
			},
			want: []string{
				"ok  \tm/a\t0.1s", "", "1 packages ok, 0 failed; 0 tests passed, 0 failed, 2 skipped", "2 skipped:",
				"  m/a.TestMute (no reason given)", "  m/a.TestS/b (no engine: docker)",
			},
		},
		{
			name: "a build failure and foreign lines pass through",
			events: []string{
				`go: a word of the tool`,
				`{"ImportPath":"m/a","Action":"build-output","Output":"a.go:1:1: undefined: x\n"}`,
				`{"ImportPath":"m/a","Action":"build-fail"}`,
				`{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}`,
				`{"Action":"fail","Package":"m/a","FailedBuild":"m/a"}`,
			},
			want: []string{
				"go: a word of the tool", "a.go:1:1: undefined: x", "FAIL\tm/a [build failed]", "FAIL", "",
				"0 packages ok, 1 failed; 0 tests passed, 0 failed, 0 skipped",
			},
			failed: true,
		},
		{
			name:   "a package without an end is a failure",
			events: []string{`{"Action":"start","Package":"m/a"}`},
			want: []string{
				"FAIL\tm/a [did not end]", "FAIL", "",
				"0 packages ok, 1 failed; 0 tests passed, 0 failed, 0 skipped",
			},
			failed: true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			rep := newReport(&out)
			if err := rep.read(strings.NewReader(strings.Join(tt.events, "\n") + "\n")); err != nil {
				t.Fatal(err)
			}
			rep.summary()
			got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if got := rep.failed() > 0; got != tt.failed {
				t.Errorf("failed: got %v, want %v", got, tt.failed)
			}
		})
	}
}

// The exit code is what CI judges: it must be that of go test itself.
func TestRunExitCode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"pass":  {body: "", want: 0},
		"fail":  {body: `t.Error("wrong")`, want: 1},
		"build": {body: `undefined()`, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := map[string]string{
				"go.mod":    "module example.test/m\n\ngo 1.26\n",
				"a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { " + tt.body + " }\n",
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out, errOut bytes.Buffer
			got, err := run(t.Context(), dir, []string{"./..."}, &out, &errOut)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("exit code: got %d, want %d; output:\n%s", got, tt.want, out.String()+errOut.String())
			}
		})
	}
}
