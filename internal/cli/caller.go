package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/cli/contexts"
	"github.com/helmdeck/helmdeck/pkg/client"
)

const (
	defaultURL = "http://127.0.0.1:3000"
	// Files of a data directory; helmdeck up writes them.
	tokenName   = "token"
	apiURLName  = "api.url"
	natsURLName = "nats.url"
	maxToken    = 64 << 10 // bytes; a JWT is far below
)

// format is the flag of every command with a result.
type format struct {
	Output string `short:"o" enum:"text,json" default:"text" placeholder:"text|json" group:"server" help:"Result as text or json."`
}

// AfterApply tells the console, so that errors follow suit.
func (f format) AfterApply(con *console.Console) error {
	con.JSON = f.Output == "json"
	return nil
}

// caller is the flags of every command that calls a server.
type caller struct {
	URL       string `name:"url" placeholder:"URL" group:"server" help:"Server to call; else HELMDECK_URL, the context in use, ${server}."`
	TokenFile string `name:"token-file" placeholder:"FILE" type:"path" group:"server" help:"File with the bearer token; else HELMDECK_TOKEN, HELMDECK_TOKEN_FILE, that of the context, DATA/token."`
	Context   string `name:"context" placeholder:"NAME" group:"server" help:"Server and token by the name that helmdeck context add gave them."`
	Data      string `name:"data" env:"HELMDECK_DATA" default:"helmdeck-data" placeholder:"DIR" type:"path" group:"server" help:"Data directory of a local helmdeck up: its token, its addresses."`
	format
}

// target is a server and how to be let in.
type target struct {
	URL, Token string
	// From and TokenFrom say where each was found; TokenFrom is empty for none.
	From, TokenFrom string
	// Named: somebody chose this server rather than taking what is there.
	Named bool
}

// connect makes a client of the server that flags, environment, context and
// defaults name, in this order. It does not call it.
func (c *caller) connect() (*client.Client, error) {
	t, err := c.target()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(t.URL, t.Token)
	if err != nil {
		return nil, misused("%w", err)
	}
	return cl, nil
}

func (c *caller) target() (target, error) {
	ctx, err := c.inContext()
	if err != nil {
		return target{}, err
	}
	var t target
	explicit := c.Context != ""
	switch env := os.Getenv("HELMDECK_URL"); {
	case c.URL != "":
		t.URL, t.From = c.URL, "--url"
	case explicit:
		t.URL, t.From = ctx.URL, "--context"
	case env != "":
		t.URL, t.From = env, "HELMDECK_URL"
	case ctx.URL != "":
		t.URL, t.From = ctx.URL, "the context in use"
	}
	if t.Named = t.URL != ""; !t.Named {
		path := filepath.Join(c.Data, apiURLName)
		if t.URL, t.From = readLine(path), path; t.URL == "" {
			t.URL, t.From = defaultURL, "the default"
		}
	}
	t.Token, t.TokenFrom, err = c.token(ctx, t.URL)
	return t, err
}

// token finds the token for a server, and says where.
func (c *caller) token(ctx contexts.Context, server string) (token, from string, err error) {
	// A context's token is for its own server only.
	own := ctx.TokenFile != "" && strings.TrimSuffix(ctx.URL, "/") == strings.TrimSuffix(server, "/")
	file := os.Getenv("HELMDECK_TOKEN_FILE")
	switch {
	case c.TokenFile != "":
		from = c.TokenFile
	case c.Context != "" && own:
		from = ctx.TokenFile
	case os.Getenv("HELMDECK_TOKEN") != "":
		return strings.TrimSpace(os.Getenv("HELMDECK_TOKEN")), "HELMDECK_TOKEN", nil
	case file != "":
		from = file
	case own:
		from = ctx.TokenFile
	case loopback(server):
		// The local token is for servers of this machine.
		path := filepath.Join(c.Data, tokenName)
		if token = readLine(path); token != "" {
			from = path
		}
		return token, from, nil
	default:
		return "", "", nil
	}
	token, err = readToken(from)
	return token, from, err
}

// inContext is the context that was named, else the one in use, else none.
func (c *caller) inContext() (contexts.Context, error) {
	store, err := contexts.Open()
	if err != nil {
		if c.Context == "" {
			return contexts.Context{}, nil // no home, no contexts
		}
		return contexts.Context{}, err
	}
	file, err := store.Read()
	if err != nil {
		return contexts.Context{}, err
	}
	name := c.Context
	if name == "" {
		name = os.Getenv("HELMDECK_CONTEXT")
	}
	if name == "" {
		name = file.Current
	}
	if name == "" {
		return contexts.Context{}, nil
	}
	ctx, err := file.Get(name)
	if err != nil {
		return ctx, misused("%w; see helmdeck context list", err)
	}
	return ctx, nil
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", misused("token file: %w", err)
	}
	defer func() { _ = f.Close() }() // read-only
	return scanToken(f, path)
}

func scanToken(r io.Reader, name string) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxToken))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", misused("%s holds no token: one line of printable characters", name)
	}
	return token, nil
}

// readLine returns the content of a small file, empty when it cannot be read.
func readLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // read-only
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func loopback(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil {
		return false
	}
	if u.Hostname() == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback()
}

// reader opens files of the command line; "-" is standard input, which is
// read once and never from a keyboard.
type reader struct {
	con  *console.Console
	used bool
}

func (r *reader) read(name string) ([]byte, error) {
	if name != "-" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fileError(err)
		}
		return text, nil
	}
	switch {
	case r.used:
		return nil, errors.New("standard input can be read once only")
	case r.con.Typed():
		return nil, errors.New("standard input is a terminal; pipe the content into it, or name a file")
	}
	r.used = true
	text, err := io.ReadAll(r.con.In)
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return text, nil
}

// fileError is an error of a file without the name of the system call.
func fileError(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%s: %w", path.Path, path.Err)
	}
	return err
}

// hostPort reports whether s is HOST:PORT, for early errors.
func hostPort(flag, s string) error {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return misused("%s: %q is not HOST:PORT: %v", flag, s, err)
	}
	return nil
}
