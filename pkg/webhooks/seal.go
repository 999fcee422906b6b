package webhooks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Sealer encrypts secrets at rest with AES-256-GCM. What a secret belongs to
// is bound to it: a sealed secret copied elsewhere does not open.
type Sealer struct {
	aead cipher.AEAD
	id   string // of the key, so that a wrong one is told from a damaged text
}

const sealVersion = "s1"

// NewSealer returns a Sealer with a key of 32 bytes.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("sealing key has %d bytes, want 32", len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(append([]byte("helmdeck sealing key id"), key...))
	return &Sealer{aead: aead, id: hex.EncodeToString(sum[:4])}, nil
}

// Seal encrypts s for one place.
func (s *Sealer) Seal(secret Secret, place string) string {
	return sealVersion + "." + s.id + "." +
		base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, []byte(secret.text), []byte(place)))
}

// Open decrypts what Seal made for the same place.
func (s *Sealer) Open(sealed, place string) (Secret, error) {
	version, rest, _ := strings.Cut(sealed, ".")
	id, text, _ := strings.Cut(rest, ".")
	switch {
	case version != sealVersion:
		return Secret{}, errors.New("open secret: not a sealed one")
	case id != s.id:
		return Secret{}, fmt.Errorf("open secret: sealed with key %.8s, this process has %s: share one keys file between all processes", id, s.id)
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return Secret{}, errors.New("open secret: damaged")
	}
	plain, err := s.aead.Open(nil, nil, b, []byte(place))
	if err != nil {
		return Secret{}, errors.New("open secret: damaged, or of another place")
	}
	return ParseSecret(string(plain))
}

// JobPlace is the place of the secret of a job's own webhook: its owner, so
// that a repeated job takes the sealed secret along.
func JobPlace(tenant, owner string) string { return "job/" + tenant + "/" + owner }

// EndpointPlace is the place of a secret of an endpoint.
func EndpointPlace(id string) string { return "endpoint/" + id }
