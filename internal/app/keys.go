package app

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// Keys are the secrets the processes of an installation share: the file of
// --keys, mode 0600.
type Keys struct {
	// Installation names the source of every event, /helmdeck/<installation>.
	Installation string `json:"installation"`
	// Link signs download links, Idempotency hashes idempotency keys; both in
	// base64 of 32 bytes.
	Link        []byte `json:"link"`
	Idempotency []byte `json:"idempotency"`
}

// Creds are how a role logs in to NATS: the file of --nats-creds, mode 0600.
type Creds struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// Names of the files in a data directory.
const (
	keysFile  = "keys.json"
	tokenFile = "token"
	urlFile   = "nats.url"
)

func credsFile(r bus.Role) string { return "nats-" + string(r) + ".json" }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// NewKeys makes the keys of a new installation.
func NewKeys() Keys {
	return Keys{Installation: strings.ToLower(rand.Text())[:8], Link: random(32), Idempotency: random(32)}
}

// ReadKeys reads the file of --keys.
func ReadKeys(path string) (Keys, error) {
	var k Keys
	if err := readSecret(path, &k); err != nil {
		return k, fmt.Errorf("keys: %w", err)
	}
	if k.Installation == "" || len(k.Link) < 16 || len(k.Idempotency) < 16 {
		return k, fmt.Errorf("keys: %s lacks installation, link or idempotency; take keys.json of the data directory of the first process", path)
	}
	return k, nil
}

// ReadCreds reads the file of --nats-creds.
func ReadCreds(path string) (Creds, error) {
	var c Creds
	if err := readSecret(path, &c); err != nil {
		return c, fmt.Errorf("NATS credentials: %w", err)
	}
	if c.User == "" || c.Password == "" {
		return c, fmt.Errorf(`NATS credentials: %s must hold {"user":…,"password":…}`, path)
	}
	return c, nil
}

// readSecret refuses a file that others may read.
func readSecret(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read-only
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is readable by others (mode %04o): chmod 600 it", path, st.Mode().Perm())
	}
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s is not the JSON it should be: %w", path, err)
	}
	return nil
}

// loadOrCreate reads a secret file, or writes fresh into it when there is none.
func loadOrCreate[T any](path string, fresh func() T) (T, error) {
	var v T
	err := readSecret(path, &v)
	if !errors.Is(err, os.ErrNotExist) {
		return v, err
	}
	v = fresh()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return v, err
	}
	// Of two processes that start at once one makes the file.
	err = writeFile(path, append(b, '\n'), 0o600, os.Link)
	if errors.Is(err, os.ErrExist) {
		err = readSecret(path, &v)
	}
	return v, err
}

// writeFile writes a whole file beside path and puts it there with os.Rename,
// which replaces, or os.Link, which does not, so that a crash leaves the old
// content or the new.
func writeFile(path string, data []byte, mode os.FileMode, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone after a rename
	err = errors.Join(f.Chmod(mode), writeAll(f, data), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return place(f.Name(), path)
}

func writeAll(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

// passwords returns the NATS passwords of the roles, kept in the data
// directory so that other processes can join this one's server.
func passwords(dir string) (map[bus.Role]string, error) {
	out := map[bus.Role]string{}
	for _, r := range bus.Roles {
		c, err := loadOrCreate(filepath.Join(dir, credsFile(r)), func() Creds {
			return Creds{User: string(r), Password: rand.Text()}
		})
		if err != nil {
			return nil, err
		}
		out[r] = c.Password
	}
	return out, nil
}
