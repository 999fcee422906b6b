package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// event is one line of "go test -json"; the fields are those of cmd/test2json and,
// for builds, of "go help buildjson".
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail, instead of Package
	Test       string
	Output     string
}

// report gathers the events of a run and prints each package when it ends.
type report struct {
	out      io.Writer
	packages map[string]*pkgRun

	passedPkgs, failedPkgs          int
	passedTests, failedTests, skips int
	skipped                         []string
}

// pkgRun is what one package has written so far.
type pkgRun struct {
	order []string            // tests in the order they began; "" is the package itself
	lines map[string][]string // output by test
	ended map[string]string   // pass, fail or skip by test
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*pkgRun{}}
}

func (r *report) failed() int { return r.failedPkgs + r.failedTests }

// read consumes the events until the stream ends. Lines that are no event (a tool
// may write some) are passed on as they are.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var ev event
			if json.Unmarshal([]byte(line), &ev) == nil && ev.Action != "" {
				r.add(ev)
			} else {
				fmt.Fprint(r.out, line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (r *report) add(ev event) {
	if ev.Action == "build-output" {
		fmt.Fprint(r.out, ev.Output)
		return
	}
	if ev.Package == "" {
		return
	}
	p := r.packages[ev.Package]
	if p == nil {
		p = &pkgRun{lines: map[string][]string{}, ended: map[string]string{}}
		r.packages[ev.Package] = p
	}
	switch ev.Action {
	case "output":
		if _, seen := p.lines[ev.Test]; !seen {
			p.order = append(p.order, ev.Test)
		}
		p.lines[ev.Test] = append(p.lines[ev.Test], ev.Output)
	case "pass", "fail", "skip":
		if ev.Test == "" {
			r.endPackage(ev, p)
			return
		}
		p.ended[ev.Test] = ev.Action
		r.endTest(ev, p)
	}
}

// endTest counts a test and lets go of what a passing one wrote.
func (r *report) endTest(ev event, p *pkgRun) {
	switch ev.Action {
	case "pass":
		r.passedTests++
		p.lines[ev.Test] = nil
	case "fail":
		r.failedTests++
	case "skip":
		r.skips++
		r.skipped = append(r.skipped, fmt.Sprintf("%s.%s (%s)", ev.Package, ev.Test, skipReason(p.lines[ev.Test])))
		p.lines[ev.Test] = nil
	}
}

// endPackage prints what go test would have printed of the package.
func (r *report) endPackage(ev event, p *pkgRun) {
	defer delete(r.packages, ev.Package)
	failed := ev.Action == "fail"
	if failed {
		r.failedPkgs++
		for _, test := range p.order {
			// A test without an end was running when the package died: its output
			// holds the panic or the list of goroutines.
			if test == "" || p.ended[test] == "pass" || p.ended[test] == "skip" {
				continue
			}
			r.print(p.lines[test])
		}
	} else if ev.Action == "pass" {
		r.passedPkgs++
	}
	for _, line := range p.lines[""] {
		// Of a passing package go test shows its last line alone.
		if failed || !chatter(line) {
			fmt.Fprint(r.out, line)
		}
	}
}

func (r *report) print(lines []string) {
	for _, line := range lines {
		if !strings.HasPrefix(line, "=== ") {
			fmt.Fprint(r.out, line)
		}
	}
}

// chatter tells package output that is not the package's "ok" or "no test files" line.
func chatter(line string) bool {
	return !strings.HasPrefix(line, "ok  \t") && !strings.HasPrefix(line, "?   \t")
}

// skipReason finds the text given to t.Skip among a test's lines.
func skipReason(lines []string) string {
	var words []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		// "file_test.go:12: reason"
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			if _, reason, ok := strings.Cut(text, ": "); ok {
				line = reason
			}
		}
		words = append(words, line)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

// summary prints the totals and the skips, after the last package.
func (r *report) summary() {
	// A package that never ended was cut off together with go test itself.
	unfinished := make([]string, 0, len(r.packages))
	for name := range r.packages {
		unfinished = append(unfinished, name)
	}
	sort.Strings(unfinished)
	for _, name := range unfinished {
		r.failedPkgs++
		fmt.Fprintf(r.out, "FAIL\t%s [did not end]\n", name)
	}
	if r.failed() > 0 {
		fmt.Fprintln(r.out, "FAIL")
	}
	fmt.Fprintf(r.out, "\n%d packages ok, %d failed; %d tests passed, %d failed, %d skipped\n",
		r.passedPkgs, r.failedPkgs, r.passedTests, r.failedTests, r.skips)
	if len(r.skipped) > 0 {
		sort.Strings(r.skipped)
		fmt.Fprintf(r.out, "%d skipped:\n", r.skips)
		for _, s := range r.skipped {
			fmt.Fprintln(r.out, "  "+s)
		}
	}
}
