package auth

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// minToken keeps a token typed by hand from being guessable.
const minToken = 16

// NewToken returns a fresh token with 256 bits of entropy, fit for a header
// and a shell without quoting.
func NewToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: the runtime aborts instead
	return "hd_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// LoadOrCreateToken returns the token in the file at path, surrounding white
// space removed. When there is no such file it creates it, readable by its
// owner alone. Of several processes that do so at once one creates the token
// and all return it; none ever reads half a token.
func LoadOrCreateToken(path string) (string, error) {
	token, err := readToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := createToken(path, NewToken()); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("create token file %s: %w", path, err)
	}
	return readToken(path)
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	switch {
	case len(token) < minToken:
		return "", fmt.Errorf("token file %s holds fewer than %d characters; delete it to get a new token", path, minToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("token file %s holds more than one token of printable ASCII; delete it to get a new token", path)
	}
	return token, nil
}

// createToken writes beside path and links, which, unlike a rename, fails
// when another process was first.
func createToken(path, token string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if _, err := f.WriteString(token + "\n"); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
