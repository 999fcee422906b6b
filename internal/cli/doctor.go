package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/cli/engines"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// doctor is helmdeck doctor.
type doctor struct{ caller }

// Help shows with --help.
func (doctor) Help() string {
	return `Looks for the programs that packs need, says what each enables and how to install it, how far sidecars are walled off here, whether API and bus answer, and, when HELMDECK_S3_ENDPOINT is set, whether the bucket for artifacts can be used. Ends with an error when something required is missing. A server is required only when one is named (--url, --context, HELMDECK_URL).

Examples:

    helmdeck doctor
    helmdeck doctor -o json | jq '.engines[] | select(.path == null)'`
}

// checkup is what doctor found.
type checkup struct {
	engines.Report
	API check `json:"api"`
	Bus check `json:"bus"`
	// Artifacts is the bucket, when the environment configures one.
	Artifacts *check `json:"artifacts,omitempty"`
}

// check is one thing that answers or not.
type check struct {
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	// Detail is what it said, or why it did not.
	Detail   string `json:"detail"`
	Required bool   `json:"required"`
}

// checkWithin bounds a check of a server.
const checkWithin = 5 * time.Second

// Run looks.
func (d *doctor) Run(ctx context.Context, con *console.Console) error {
	t, err := d.target()
	if err != nil {
		return err
	}
	c := checkup{Report: engines.Find(ctx, true), API: checkAPI(ctx, t), Bus: d.checkBus(ctx), Artifacts: checkBucket(ctx)}
	if con.JSON {
		err = con.WriteJSON(c)
	} else {
		err = showCheckup(con, c)
	}
	if err != nil {
		return err
	}
	return c.verdict()
}

// verdict is the error for what is required and missing.
func (c checkup) verdict() error {
	var missing []string
	f := &failure{exit: exitInternal, Code: "missing"}
	for _, e := range c.Missing() {
		missing = append(missing, e.Name)
		f.Hints = append(f.Hints, "install "+e.Name+": "+e.Install)
	}
	if c.API.Required && !c.API.OK {
		missing = append(missing, "the API at "+c.API.Address)
		f.Hints = append(f.Hints, "API: "+c.API.Detail)
	}
	if c.Artifacts != nil && !c.Artifacts.OK {
		missing = append(missing, "the bucket for artifacts")
		f.Hints = append(f.Hints, "artifacts: "+c.Artifacts.Detail)
	}
	if len(missing) == 0 {
		return nil
	}
	f.Message = strings.Join(missing, ", ")
	return f
}

func checkAPI(ctx context.Context, t target) check {
	c := check{Address: t.URL, Required: t.Named}
	cl, err := client.New(t.URL, t.Token)
	if err != nil {
		c.Detail = err.Error()
		return c
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	r, err := cl.Ready(ctx)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		c.Detail = "nobody answers; helmdeck up starts a server"
		return c
	case err != nil:
		c.Detail = err.Error()
		return c
	case r.Status != "ready":
		c.Detail = fmt.Sprintf("not ready: %v", r.Checks)
		return c
	}
	if _, err := cl.Pools(ctx); err != nil {
		c.Detail = "ready, but refuses the token: " + err.Error()
		return c
	}
	serving := 0
	for _, p := range r.Pools {
		if p.Workers > 0 {
			serving++
		}
	}
	c.OK, c.Detail = true, fmt.Sprintf("ready, token accepted, %d of %d pools have a worker", serving, len(r.Pools))
	return c
}

// checkBus logs in to the bus of the local data directory.
func (d *doctor) checkBus(ctx context.Context) check {
	login := natsLogin{Data: d.Data, Prefix: events.DefaultInstallation}
	c := check{Address: readLine(filepath.Join(d.Data, natsURLName))}
	if c.Address == "" {
		c.Detail = "no data directory at " + d.Data + "; helmdeck up makes one"
		return c
	}
	creds, err := login.find()
	if err != nil {
		c.Detail = err.Error()
		return c
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	_, hangUp, err := events.Dial(ctx, events.Login{URL: c.Address, User: creds.User, Password: creds.Password, Name: "helmdeck doctor"},
		events.Options{Caller: identity.Caller{Subject: "admin"}})
	if err != nil {
		c.Detail = "no login: " + err.Error()
		return c
	}
	hangUp()
	c.OK, c.Detail = true, "login accepted"
	return c
}

func showCheckup(con *console.Console, c checkup) error {
	rows := make([][]string, len(c.Engines))
	for i, e := range c.Engines {
		state, what := "found", e.Path
		switch {
		case !e.Found() && e.Required:
			state, what = "MISSING", e.Install
		case !e.Found():
			state, what = "absent", e.Install
		}
		rows[i] = []string{e.Name, state, e.Version, e.Enables, what}
	}
	if err := con.Table([]string{"ENGINE", "STATE", "VERSION", "ENABLES", "WHERE, OR HOW TO INSTALL"}, rows); err != nil {
		return err
	}
	if err := con.Print(""); err != nil {
		return err
	}
	fields := []string{
		"sandbox", sandboxText(c.Sandbox),
		"API", fmt.Sprintf("%s: %s", c.API.Address, c.API.Detail),
		"bus", strings.TrimPrefix(fmt.Sprintf("%s: %s", c.Bus.Address, c.Bus.Detail), ": "),
	}
	if c.Artifacts != nil {
		fields = append(fields, "artifacts", strings.TrimPrefix(fmt.Sprintf("%s: %s", c.Artifacts.Address, c.Artifacts.Detail), ": "))
	}
	return con.Fields(fields...)
}

func sandboxText(s engines.Sandbox) string {
	text := "process sidecars with pid and mount namespaces of their own"
	if !s.Namespaces {
		text = "process sidecars WITHOUT namespaces, since the system refuses them (" + s.Reason + ")"
	}
	if s.OwnUID {
		text += ", each under its own user id"
	} else {
		text += ", all under your user id (started as root, each gets its own)"
	}
	text += "\nnetwork: sidecars are pointed at the egress proxy; programs in them are not forced to use it"
	return text
}
