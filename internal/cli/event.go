package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// event is helmdeck event.
type event struct {
	Tail eventTail `cmd:"" help:"Follow the events of one caller's jobs, over NATS."`
}

// Help shows with --help.
func (event) Help() string {
	return `Every change of a job is a CloudEvent on NATS; see docs/events.md.

Examples:

    helmdeck event tail
    helmdeck event tail --job ID`
}

// natsLogin is the flags of commands that talk to NATS itself.
type natsLogin struct {
	NATS      string `name:"nats" env:"HELMDECK_NATS_URL" placeholder:"URL" group:"server" help:"NATS servers, nats://HOST:PORT; else DATA/nats.url."`
	NATSCreds string `name:"nats-creds" env:"HELMDECK_NATS_CREDS" placeholder:"FILE" type:"path" group:"server" help:"JSON file with user and password; else DATA/nats-admin.json."`
	Prefix    string `env:"HELMDECK_PREFIX" default:"hd" group:"server" help:"First token of every subject of the installation."`
	Data      string `name:"data" env:"HELMDECK_DATA" default:"helmdeck-data" placeholder:"DIR" type:"path" group:"server" help:"Data directory of a local helmdeck up."`
	format
}

// find fills in what the data directory knows.
func (n *natsLogin) find() (app.Creds, error) {
	if n.NATS == "" {
		path := filepath.Join(n.Data, natsURLName)
		if n.NATS = readLine(path); n.NATS == "" {
			return app.Creds{}, misused("which NATS server? There is no %s; name it with --nats URL, or the data directory of a running helmdeck up with --data DIR", path)
		}
	}
	if n.NATSCreds == "" {
		n.NATSCreds = filepath.Join(n.Data, "nats-admin.json")
	}
	creds, err := app.ReadCreds(n.NATSCreds)
	if err != nil {
		return creds, misused("%w; name another file with --nats-creds FILE", err)
	}
	return creds, nil
}

type eventTail struct {
	Job     string        `placeholder:"ID" help:"Events of this job from its first to its last; else live events of all jobs."`
	Kind    []string      `placeholder:"a,b" help:"lifecycle, progress, log, artifacts, queued; all by default."`
	From    string        `placeholder:"CURSOR" help:"Begin after this place, as an earlier tail printed it."`
	History bool          `help:"Begin with the first event that is kept."`
	Stop    bool          `help:"Stop at the present instead of waiting for more."`
	As      string        `default:"admin" placeholder:"SUBJECT" help:"Caller whose jobs are followed."`
	Tenant  string        `placeholder:"NAME" help:"Tenant of that caller."`
	For     time.Duration `placeholder:"DURATION" help:"Stop after so long."`
	natsLogin
}

// Help shows with --help.
func (eventTail) Help() string {
	return `Nothing is left behind on the server, and nothing is missed across a lost connection. With --output json each line is a CloudEvent in structured mode. With --job it ends with the job.

Examples:

    helmdeck event tail
    helmdeck event tail --job ID -o json | jq .type
    helmdeck event tail --history --kind lifecycle --stop`
}

// kinds maps the words of --kind to the last token of a subject.
var kinds = map[string]string{
	"lifecycle": events.KindLifecycle, "progress": events.KindProgress, "log": events.KindLog,
	"artifacts": events.KindArtifacts, "queued": events.KindQueued,
}

// Run follows.
func (e *eventTail) Run(ctx context.Context, con *console.Console) error {
	filter, from, err := e.filter()
	if err != nil {
		return err
	}
	creds, err := e.find()
	if err != nil {
		return err
	}
	sub, hangUp, err := events.Dial(ctx, events.Login{URL: e.NATS, User: creds.User, Password: creds.Password, Name: "helmdeck event tail"},
		events.Options{Prefix: e.Prefix, Caller: identity.Caller{Subject: e.As, Tenant: e.Tenant}})
	if err != nil {
		return dialFailure(err)
	}
	defer hangUp()
	within := ctx
	if e.For > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, e.For)
		defer cancel()
	}
	follow := sub.Follow
	if e.Stop {
		follow = sub.History
	}
	var last events.Cursor
	for ev, err := range follow(within, filter, from) {
		if err != nil {
			return historyFailure(err)
		}
		if err := e.show(con, ev); err != nil {
			return err
		}
		last = ev.Cursor
	}
	if len(last) > 0 && filter.JobID == "" {
		con.Say("%s", con.Dim("to go on here: helmdeck event tail --from "+last.String()))
	}
	return ctx.Err()
}

func (e *eventTail) filter() (events.Filter, events.Cursor, error) {
	f := events.Filter{JobID: e.Job, LiveOnly: e.Job == "" && e.From == "" && !e.History && !e.Stop}
	for _, k := range e.Kind {
		kind, ok := kinds[k]
		if !ok {
			return f, nil, misused("--kind: unknown kind %q; there are lifecycle, progress, log, artifacts and queued", k)
		}
		f.Kinds = append(f.Kinds, kind)
	}
	if e.Job != "" && !events.ValidToken(e.Job) {
		return f, nil, misused("--job: %q is no id of a job", e.Job)
	}
	from, err := events.ParseCursor(e.From)
	if err != nil {
		return f, nil, misused("--from: %w", err)
	}
	return f, from, nil
}

func dialFailure(err error) error {
	switch {
	case errors.Is(err, events.ErrLogin):
		return &failure{exit: exitDenied, Code: string(packs.Forbidden), Message: err.Error(), err: err,
			Hints: []string{"name the file with user and password: --nats-creds FILE"}}
	case errors.Is(err, events.ErrUnreachable):
		return &failure{exit: exitUnreachable, Code: "unreachable", Message: err.Error(), err: err,
			Hints: []string{"is helmdeck up running? Its address is in DATA/nats.url: pass --data DIR, or --nats URL"}}
	}
	return err
}

func historyFailure(err error) error {
	if errors.Is(err, events.ErrNoHistory) {
		return &failure{exit: exitUnreachable, Code: "unreachable", Message: err.Error(), err: err,
			Hints: []string{"past events come from an API replica, and none answers"}}
	}
	return err
}

func (e *eventTail) show(con *console.Console, ev events.Event) error {
	if con.JSON {
		return con.WriteLine(ev.Event)
	}
	at := ev.Time()
	if at.IsZero() {
		at = ev.StoredAt
	}
	return con.Print("%s  %-16s  %s  %s", at.Local().Format("15:04:05.000"),
		strings.TrimPrefix(ev.Type(), events.Prefix), ev.Key.ID, describe(ev))
}

// describe is what an event says, in one line.
func describe(ev events.Event) string {
	text := ""
	switch ev.Kind {
	case events.KindProgress:
		if p, err := events.Data[jobs.Progress](ev.Event); err == nil {
			text = fmt.Sprintf("%3.0f %% %s", p.Percent, p.Message)
		}
	case events.KindLog:
		if l, err := events.Data[events.Log](ev.Event); err == nil {
			text = strings.Join(l.Lines, " | ")
		}
	case events.KindArtifacts:
		if m, err := events.Data[events.Manifest](ev.Event); err == nil {
			for _, a := range m.Artifacts {
				text += fmt.Sprintf("%s (%s) ", a.Key, console.Bytes(a.Size))
			}
		}
	case events.KindLifecycle:
		if j, err := events.Data[jobs.Job](ev.Event); err == nil {
			text = strings.TrimSpace(fmt.Sprintf("%s attempt %d %s", j.Pack, j.Attempt, remark(&j)))
		}
	}
	return console.Clean(text)
}
