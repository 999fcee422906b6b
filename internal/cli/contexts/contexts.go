// Package contexts remembers servers by name, each with the file its token is
// in, for the command line: contexts.json in the user's configuration folder,
// readable by its owner alone.
package contexts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Context is one server.
type Context struct {
	URL string `json:"url"`
	// TokenFile is an absolute path.
	TokenFile string `json:"token_file"`
}

// File is the content of contexts.json.
type File struct {
	// Current is the context used when none is named; may be empty.
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts"`
}

// Names lists the contexts in order.
func (f File) Names() []string { return slices.Sorted(maps.Keys(f.Contexts)) }

// Get returns a context by name. The error names those there are.
func (f File) Get(name string) (Context, error) {
	c, ok := f.Contexts[name]
	if !ok {
		have := "none is defined"
		if names := f.Names(); len(names) > 0 {
			have = "there are " + strings.Join(names, ", ")
		}
		return c, fmt.Errorf("%w %q; %s", ErrUnknown, name, have)
	}
	return c, nil
}

// ErrUnknown is wrapped by the error for a name nobody defined.
var ErrUnknown = errors.New("there is no context")

// namePattern keeps names fit for a file and a shell.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName errs for a name that cannot be one.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("a context is named by up to 64 letters, digits, dots, dashes and underscores, not %q", name)
	}
	return nil
}

// Store is the file of one user.
type Store struct{ dir string }

// Open finds the user's store. It reads nothing.
func Open() (Store, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return Store{}, fmt.Errorf("find the configuration folder: %w", err)
	}
	return Store{dir: filepath.Join(dir, "helmdeck")}, nil
}

// Path is where the contexts are.
func (s Store) Path() string { return filepath.Join(s.dir, "contexts.json") }

// Read returns the contexts; none when there is no file.
func (s Store) Read() (File, error) {
	f := File{Contexts: map[string]Context{}}
	text, err := os.ReadFile(s.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return f, fmt.Errorf("read %s: %w; mend or delete the file", s.Path(), err)
	}
	if f.Contexts == nil {
		f.Contexts = map[string]Context{}
	}
	return f, nil
}

// Write replaces the contexts as a whole.
func (s Store) Write(f File) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode contexts: %w", err)
	}
	return s.put(s.Path(), append(text, '\n'))
}

// KeepToken stores a token that came from no file and returns its path.
func (s Store) KeepToken(name, token string) (string, error) {
	path := filepath.Join(s.dir, "tokens", name)
	return path, s.put(path, []byte(token+"\n"))
}

// Forget removes a token that KeepToken stored.
func (s Store) Forget(name string) error {
	err := os.Remove(filepath.Join(s.dir, "tokens", name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// put writes beside path and renames, so that a crash leaves the old content
// or the new; mode 0600.
func (s Store) put(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make configuration folder: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone after the rename
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
