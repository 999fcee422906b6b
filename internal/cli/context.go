package cli

import (
	"path/filepath"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/cli/contexts"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// contextCmd is helmdeck context.
type contextCmd struct {
	List   contextList   `cmd:"" help:"List the contexts."`
	Add    contextAdd    `cmd:"" help:"Remember a server and where its token is."`
	Use    contextUse    `cmd:"" help:"Use a context when nothing else is said."`
	Remove contextRemove `cmd:"" help:"Forget a context."`
	Show   contextShow   `cmd:"" help:"Show which server a command would call, and why."`
}

// Help shows with --help.
func (contextCmd) Help() string {
	return `A context is a server's address and the file of its token, under a name. Which server a command calls is decided by its flags, then HELMDECK_URL and HELMDECK_TOKEN, then the context in use, then the data directory, then ` + defaultURL + `. A context's token is sent to that context's server only.

Examples:

    helmdeck context add prod --url https://deck.example.org --token-file ~/.deck-token
    helmdeck context use prod
    helmdeck pack list --context prod`
}

// contextView is a context as it is listed.
type contextView struct {
	Name string `json:"name"`
	contexts.Context
	Current bool `json:"current"`
}

func viewOf(f contexts.File, name string) contextView {
	return contextView{Name: name, Context: f.Contexts[name], Current: name == f.Current}
}

func openContexts() (contexts.Store, contexts.File, error) {
	store, err := contexts.Open()
	if err != nil {
		return store, contexts.File{}, err
	}
	f, err := store.Read()
	return store, f, err
}

type contextList struct{ format }

// Help shows with --help.
func (contextList) Help() string {
	return "Examples:\n\n    helmdeck context list"
}

// Run lists.
func (contextList) Run(con *console.Console) error {
	_, f, err := openContexts()
	if err != nil {
		return err
	}
	views := []contextView{}
	rows := [][]string{}
	for _, name := range f.Names() {
		v := viewOf(f, name)
		mark := ""
		if v.Current {
			mark = "*"
		}
		views = append(views, v)
		rows = append(rows, []string{mark, v.Name, v.URL, v.TokenFile})
	}
	if con.JSON {
		return con.WriteJSON(views)
	}
	return con.Table([]string{"", "NAME", "URL", "TOKEN FILE"}, rows)
}

type contextAdd struct {
	Name      string `arg:"" help:"Name to remember it by."`
	URL       string `name:"url" required:"" placeholder:"URL" help:"Address of the server."`
	TokenFile string `name:"token-file" placeholder:"FILE" help:"File with the bearer token; - reads the token from standard input and keeps it, readable by you alone."`
	Use       bool   `help:"Use it from now on."`
	format
}

// Help shows with --help.
func (contextAdd) Help() string {
	return `A context of the same name is replaced. The first one is used from then on.

Examples:

    helmdeck context add local --url http://127.0.0.1:3000 --token-file helmdeck-data/token
    helmdeck context add prod --url https://deck.example.org --token-file - < token`
}

// Run adds.
func (c *contextAdd) Run(con *console.Console) error {
	if err := contexts.CheckName(c.Name); err != nil {
		return misused("%w", err)
	}
	if _, err := client.New(c.URL, ""); err != nil {
		return misused("%w", err)
	}
	store, f, err := openContexts()
	if err != nil {
		return err
	}
	ctx := contexts.Context{URL: strings.TrimSuffix(c.URL, "/")}
	switch {
	case c.TokenFile == "-" && con.Typed():
		return misused("standard input is a terminal; pipe the token into it")
	case c.TokenFile == "-":
		token, err := scanToken(con.In, "standard input")
		if err != nil {
			return err
		}
		if ctx.TokenFile, err = store.KeepToken(c.Name, token); err != nil {
			return err
		}
	case c.TokenFile != "":
		if _, err := readToken(c.TokenFile); err != nil {
			return err
		}
		if ctx.TokenFile, err = filepath.Abs(c.TokenFile); err != nil {
			return err
		}
	}
	f.Contexts[c.Name] = ctx
	if c.Use || len(f.Contexts) == 1 {
		f.Current = c.Name
	}
	if err := store.Write(f); err != nil {
		return err
	}
	return showContext(con, viewOf(f, c.Name))
}

type contextUse struct {
	Name string `arg:"" help:"Name of the context."`
	format
}

// Help shows with --help.
func (contextUse) Help() string {
	return "Examples:\n\n    helmdeck context use prod"
}

// Run uses.
func (c *contextUse) Run(con *console.Console) error {
	store, f, err := openContexts()
	if err != nil {
		return err
	}
	if _, err := f.Get(c.Name); err != nil {
		return notDefined(err)
	}
	f.Current = c.Name
	if err := store.Write(f); err != nil {
		return err
	}
	return showContext(con, viewOf(f, c.Name))
}

func notDefined(err error) error {
	return &failure{exit: exitNotFound, Code: "not_found", Message: err.Error(), err: err,
		Hints: []string{"define it: helmdeck context add NAME --url URL --token-file FILE"}}
}

type contextRemove struct {
	Name string `arg:"" help:"Name of the context."`
	format
}

// Help shows with --help.
func (contextRemove) Help() string {
	return `A token that context add kept is removed too; a file that was named stays.

Examples:

    helmdeck context remove prod`
}

// Run removes.
func (c *contextRemove) Run(con *console.Console) error {
	store, f, err := openContexts()
	if err != nil {
		return err
	}
	if _, err := f.Get(c.Name); err != nil {
		return notDefined(err)
	}
	v := viewOf(f, c.Name)
	delete(f.Contexts, c.Name)
	if f.Current == c.Name {
		f.Current = ""
	}
	if err := store.Write(f); err != nil {
		return err
	}
	if err := store.Forget(c.Name); err != nil {
		return err
	}
	v.Current = false
	return showContext(con, v)
}

func showContext(con *console.Console, v contextView) error {
	if con.JSON {
		return con.WriteJSON(v)
	}
	current := ""
	if v.Current {
		current = "yes"
	}
	return con.Fields("name", v.Name, "url", v.URL, "token file", v.TokenFile, "in use", current)
}

type contextShow struct{ caller }

// Help shows with --help.
func (contextShow) Help() string {
	return `Examples:

    helmdeck context show
    helmdeck context show --context prod`
}

// Run shows.
func (c *contextShow) Run(con *console.Console) error {
	t, err := c.target()
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(map[string]any{"url": t.URL, "url_from": t.From, "token_from": t.TokenFrom})
	}
	token := t.TokenFrom
	if token == "" {
		token = "none"
	}
	return con.Fields("server", t.URL, "from", t.From, "token from", token)
}
