package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAnswersNameWhatIsThere: every test, page and folder that docs/answers.md
// points at exists, and it has all 26 rows.
func TestAnswersNameWhatIsThere(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "answers.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	if n := len(regexp.MustCompile(`(?m)^\| \d+ \|`).FindAllString(text, -1)); n != 26 {
		t.Errorf("%d rows, want 26", n)
	}
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(text, -1) {
		if !tests[name] {
			t.Errorf("there is no %s", name)
		}
	}
	for _, m := range regexp.MustCompile("\\]\\(([^)]+)\\)|`((?:pkg|test|internal)/[^`]+)`").FindAllStringSubmatch(text, -1) {
		path := filepath.Join(root, m[2])
		if m[1] != "" {
			path = filepath.Join(root, "docs", m[1])
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
