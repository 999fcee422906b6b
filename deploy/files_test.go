package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v4"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
)

// secrets runs make-secrets on a folder of the test.
func secrets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "./make-secrets", dir).CombinedOutput(); err != nil {
		t.Fatalf("make-secrets: %v\n%s", err, out)
	}
	return dir
}

// TestMakeSecrets shows that the programs accept what make-secrets writes, and that
// a second run renews nothing.
func TestMakeSecrets(t *testing.T) {
	t.Parallel()
	dir := secrets(t)
	if _, err := app.ReadKeys(filepath.Join(dir, "keys.json")); err != nil {
		t.Error(err)
	}
	env, err := os.ReadFile(filepath.Join(dir, "nats.env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range bus.Roles {
		creds, err := app.ReadCreds(filepath.Join(dir, "nats-"+string(role)+".json"))
		if err != nil {
			t.Error(err)
			continue
		}
		if creds.User != string(role) {
			t.Errorf("user of %s: got %q", role, creds.User)
		}
		if line := passwordVar(role) + "=" + creds.Password + "\n"; !strings.Contains(string(env), line) {
			t.Errorf("nats.env has not the password of %s", role)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "./make-secrets", dir).CombinedOutput(); err != nil {
		t.Fatalf("make-secrets again: %v\n%s", err, out)
	}
	again, err := os.ReadFile(filepath.Join(dir, "nats.env"))
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(env) {
		t.Error("a second run changed nats.env")
	}
}

// builtPrograms is the folder to remove after the last test.
var builtPrograms string

// programs builds the role programs once and returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "helmdeck-deploy-")
	if err != nil {
		return "", err
	}
	builtPrograms = dir
	// As ./task does, so that compiled packages are shared with it.
	if out, err := exec.Command("../scripts/build", "test", dir).CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return dir, nil
})

// parses tells whether a program knows the arguments: --help is answered only after
// all flags were understood.
func parses(t *testing.T, program string, args []string, env ...string) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, program), append(args, "--help")...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

var execStart = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/(helmdeck\S*) (.*)$`)

// TestUnits shows that the programs know the arguments of their service units.
func TestUnits(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("systemd/helmdeck*.service")
	if err != nil || len(units) != 4 {
		t.Fatalf("got %d units, %v; want 4", len(units), err)
	}
	for _, unit := range units {
		t.Run(filepath.Base(unit), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			m := execStart.FindStringSubmatch(string(text))
			if m == nil {
				t.Fatal("no ExecStart")
			}
			line := strings.NewReplacer("${HELMDECK_SLOTS}", "4", "${HELMDECK_POOLS}", "core", "${HELMDECK_NATS_URL}", "nats://h:1",
				"${CREDENTIALS_DIRECTORY}", "/run/credentials").Replace(m[2])
			parses(t, m[1], strings.Fields(line))
		})
	}
}

// compose is what the tests read of compose.yaml.
type compose struct {
	Services map[string]struct {
		Image       string
		Command     []string
		Environment map[string]string
		Secrets     []string
		Volumes     []string
		Healthcheck struct{ Test []string }
		Build       struct{ Target, Dockerfile, Context string }
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	}
	Secrets map[string]struct{ File string }
	Volumes map[string]any
}

func readCompose(t *testing.T, file string) compose {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("compose", file))
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	return c
}

// TestCompose shows that what compose.yaml names exists: secrets, build targets,
// services, folders; and that the programs know the arguments.
func TestCompose(t *testing.T) {
	t.Parallel()
	c := readCompose(t, "compose.yaml")
	dir := secrets(t)
	dockerfile, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range c.Secrets {
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(file.File))); err != nil {
			t.Errorf("secret %s: make-secrets makes no such file: %v", name, err)
		}
	}
	for name, s := range c.Services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, secret := range s.Secrets {
				if _, ok := c.Secrets[secret]; !ok {
					t.Errorf("secret %s is not declared", secret)
				}
			}
			for other := range s.DependsOn {
				if _, ok := c.Services[other]; !ok {
					t.Errorf("depends on %s, which is no service", other)
				}
			}
			for _, volume := range s.Volumes {
				source, _, _ := strings.Cut(volume, ":")
				_, named := c.Volumes[source]
				if _, err := os.Stat(filepath.Join("compose", source)); err != nil && !named {
					t.Errorf("volume %s is neither a folder nor declared", volume)
				}
			}
			if s.Build.Target == "" {
				return // an image of others
			}
			if !strings.Contains(string(dockerfile), " AS "+s.Build.Target+"\n") {
				t.Errorf("the Dockerfile has no target %s", s.Build.Target)
			}
			program := "helmdeck"
			if s.Build.Target != program {
				program = "helmdeck-" + s.Build.Target
			}
			var env []string
			for key, value := range s.Environment {
				if !strings.HasPrefix(value, "${") {
					env = append(env, key+"="+value)
				}
			}
			parses(t, program, s.Command, env...)
			if s.Command[0] != "bus" && !slices.Contains(s.Healthcheck.Test, "bash") {
				t.Error("no health check")
			}
		})
	}
}

// TestComposeS3 shows that compose.s3.yaml adds to services that exist, with
// variables that the programs read.
func TestComposeS3(t *testing.T) {
	t.Parallel()
	base := readCompose(t, "compose.yaml")
	over := readCompose(t, "compose.s3.yaml")
	values := map[string]string{}
	for name, s := range over.Services {
		if _, ok := base.Services[name]; !ok && name != "s3" {
			t.Errorf("service %s is none of compose.yaml", name)
		}
		for _, secret := range s.Secrets {
			if _, ok := over.Secrets[secret]; !ok {
				t.Errorf("service %s: secret %s is not declared", name, secret)
			}
		}
		for k, v := range s.Environment {
			// What the reader of the file gets without variables of its own.
			v = regexp.MustCompile(`\$\{\w+:-([^}]*)\}`).ReplaceAllString(v, "$1")
			if path, ok := strings.CutPrefix(v, "/run/secrets/"); ok {
				v = filepath.Join(t.TempDir(), path)
				if err := os.WriteFile(v, []byte("secret"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			values[k] = v
		}
	}
	got, err := s3.FromEnv(func(name string) string { return values[name] })
	want := s3.Config{Endpoint: "http://s3:7070", Bucket: "helmdeck", Region: "us-east-1", AccessKey: "secret", SecretKey: "secret"}
	if err != nil || got == nil {
		t.Fatalf("FromEnv: got %+v, %v", got, err)
	}
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreFields(s3.Config{}, "Now")); diff != "" {
		t.Errorf("configuration: (-want +got)\n%s", diff)
	}
}
