package s3_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3/s3test"
)

// silent is the address of a listener that never answers.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := map[string]string{
		s3.EnvEndpoint: "https://s3.example.com", s3.EnvBucket: "deck", s3.EnvAccessKey: "key", s3.EnvSecretKey: "secret",
	}
	with := func(changes ...string) map[string]string {
		m := map[string]string{}
		for k, v := range full {
			m[k] = v
		}
		for i := 0; i < len(changes); i += 2 {
			m[changes[i]] = changes[i+1]
		}
		return m
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		want *s3.Config
		errs []string
	}{
		{"nothing", map[string]string{}, nil, nil},
		{"no endpoint", map[string]string{s3.EnvBucket: "deck"}, nil, nil},
		{"all", with(s3.EnvRegion, "garage", s3.EnvUseSSL, "true", s3.EnvPublicEndpoint, "files.example.com"), &s3.Config{
			Endpoint: "https://s3.example.com", Bucket: "deck", AccessKey: "key", SecretKey: "secret",
			Region: "garage", UseSSL: true, PublicEndpoint: "files.example.com",
		}, nil},
		{"a secret from a file", with(s3.EnvSecretKey, "", s3.EnvSecretKey+"_FILE", secret), &s3.Config{
			Endpoint: "https://s3.example.com", Bucket: "deck", AccessKey: "key", SecretKey: "from-file",
		}, nil},
		{"the plain variable wins", with(s3.EnvSecretKey+"_FILE", secret), &s3.Config{
			Endpoint: "https://s3.example.com", Bucket: "deck", AccessKey: "key", SecretKey: "secret",
		}, nil},
		{"only exactly true is true", with(s3.EnvUseSSL, "1"), &s3.Config{
			Endpoint: "https://s3.example.com", Bucket: "deck", AccessKey: "key", SecretKey: "secret",
		}, nil},
		{"missing", map[string]string{s3.EnvEndpoint: "h:1"}, nil, []string{s3.EnvBucket, s3.EnvAccessKey, s3.EnvSecretKey}},
		{"missing file", with(s3.EnvSecretKey, "", s3.EnvSecretKey+"_FILE", secret+"x"), nil, []string{s3.EnvSecretKey + "_FILE"}},
		{"bad values", with(s3.EnvEndpoint, "ftp://h", s3.EnvPublicEndpoint, "http://h/path", s3.EnvBucket, "Bad_Bucket"), nil,
			[]string{s3.EnvEndpoint + ":", s3.EnvPublicEndpoint + ":", s3.EnvBucket + ":"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := s3.FromEnv(func(name string) string { return tt.env[name] })
			for _, want := range tt.errs {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want one that names %s", err, want)
				}
			}
			if len(tt.errs) > 0 {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(s3.Config{}, "Now")); diff != "" || err != nil {
				t.Errorf("error %v, (-want +got)\n%s", err, diff)
			}
		})
	}
}

// TestTaskfileBuildsThisServer keeps the two pins of the version together.
func TestTaskfileBuildsThisServer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../Taskfile.yml")
	if err != nil {
		t.Fatal(err)
	}
	if want := "VERSITYGW_VERSION: " + s3test.Version + "\n"; !strings.Contains(string(text), want) {
		t.Errorf("Taskfile.yml lacks %q", want)
	}
}
