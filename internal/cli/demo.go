package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/cli/console"
	demodeck "github.com/helmdeck/helmdeck/internal/cli/demo"
	"github.com/helmdeck/helmdeck/internal/cli/engines"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const (
	demoPack = "slides.render"
	// demoWithin bounds the demonstration: a first start of the browser on a
	// slow machine takes a minute.
	demoWithin = 5 * time.Minute
	// demoSlots is enough for one job at a time.
	demoSlots = 1
)

// demo is helmdeck demo.
type demo struct {
	File string `name:"output" short:"o" default:"helmdeck-demo.pdf" placeholder:"FILE" type:"path" help:"Where the PDF goes; a file that is there is replaced."`
	Deck string `placeholder:"FILE" type:"existingfile" help:"Render this Marp deck instead of the built-in one."`
	Data string `placeholder:"DIR" type:"path" help:"Keep the data directory here; by default it is a temporary one."`
	Logs bool   `help:"Show the log of the processes too."`
}

// Help shows with --help.
func (demo) Help() string {
	return `Starts everything in this process, on a free port and in a data directory of its own, submits a job that renders a deck, follows it, fetches the PDF and stops again. What happens is told on standard error; the path of the PDF is all that standard output gets.

Examples:

    helmdeck demo
    helmdeck demo --output /tmp/deck.pdf
    xdg-open "$(helmdeck demo --deck talk.md --output talk.pdf)"`
}

// Run demonstrates.
func (d *demo) Run(ctx context.Context, con *console.Console) error {
	if lacking := engines.Find(ctx, false).Lacking(demoPack); len(lacking) > 0 {
		return &failure{exit: exitInternal, Code: "missing",
			Message: fmt.Sprintf("%s needs %s, and this machine has none", demoPack, strings.Join(lacking, ", ")),
			Hints:   []string{"install all of it: " + engines.Setup, "look for more: helmdeck doctor"}}
	}
	deck := demodeck.Deck
	if d.Deck != "" {
		text, err := os.ReadFile(d.Deck)
		if err != nil {
			return misused("--deck: %w", fileError(err))
		}
		deck = string(text)
	}
	dir, clean, err := d.directory()
	if err != nil {
		return err
	}
	defer clean()
	ctx, cancel := context.WithTimeout(ctx, demoWithin)
	defer cancel()
	s := &story{con: con, began: time.Now()}
	running, stop, err := d.start(ctx, con, dir)
	if err != nil {
		return err
	}
	s.tell("started", "API %s, NATS %s, worker and scheduler in this process", running.URL, running.NATSURL)
	err = d.render(ctx, s, running, deck)
	// Whatever happened, everything is stopped before the last word.
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	s.tell("stopped", "nothing is left running")
	return con.Print("%s", d.File)
}

// directory makes the data directory. clean removes a temporary one.
func (d *demo) directory() (dir string, clean func(), err error) {
	if d.Data != "" {
		return d.Data, func() {}, nil
	}
	if dir, err = os.MkdirTemp("", "helmdeck-demo-"); err != nil {
		return "", nil, fmt.Errorf("make data directory: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil // a temporary folder at worst
}

// start runs all roles until stop is called.
func (d *demo) start(ctx context.Context, con *console.Console, dir string) (app.Running, func() error, error) {
	slots, err := app.SlotsOf([]string{string(packs.PoolCore), string(packs.PoolBrowser)}, demoSlots)
	if err != nil {
		return app.Running{}, nil, err
	}
	level := zerolog.ErrorLevel
	if d.Logs {
		level = zerolog.InfoLevel
	}
	up := app.Up{
		Settings: app.Settings{Profile: "embedded", Prefix: "hd",
			Log: zerolog.New(zerolog.ConsoleWriter{Out: con.Err, TimeFormat: time.TimeOnly, NoColor: true}).Level(level).With().Timestamp().Logger()},
		Data: dir, Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0",
		Roles: []string{"api", "worker", "scheduler"}, Slots: slots,
	}
	ready := make(chan app.Running, 1)
	up.Ready = func(r app.Running) { ready <- r }
	own, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- up.Run(own) }()
	stop := func() error {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("stop: %w", err)
		}
		return nil
	}
	select {
	case err := <-done:
		cancel()
		return app.Running{}, nil, err
	case r := <-ready:
		if err := awaitReady(ctx, r.URL); err != nil {
			return r, nil, errors.Join(err, stop())
		}
		return r, stop, nil
	}
}

// render runs the job and fetches what it made.
func (d *demo) render(ctx context.Context, s *story, running app.Running, deck string) error {
	token, err := readToken(running.TokenFile)
	if err != nil {
		return err
	}
	c, err := client.New(running.URL, token)
	if err != nil {
		return err
	}
	defer c.Close()
	in, err := json.Marshal(map[string]any{"markdown": deck, "format": "pdf"})
	if err != nil {
		return fmt.Errorf("encode input: %w", err)
	}
	submitted, err := c.Submit(ctx, jobs.Request{Pack: demoPack, Input: in, IdempotencyKey: uuid.NewString()})
	if err != nil {
		return err
	}
	s.tell("submitted", "job %s: the API answered 202 once JetStream had it safe", submitted.ID)
	w := &watch{con: s.con, c: c, told: s.event}
	result, err := w.result(ctx, submitted.ID, demoPack)
	if err != nil {
		return err
	}
	s.tell("succeeded", "after %.1f s in sidecar %s, leased from the scheduler for this attempt",
		float64(result.DurationMS)/1000, result.SessionID)
	for _, a := range result.Artifacts {
		s.tell("stored", "%s (%s, sha256 %.12s…) in the artifact store", a.Key, console.Bytes(a.Size), a.SHA256)
	}
	return d.fetch(ctx, s, c, result.Artifacts)
}

// fetch downloads the PDF.
func (d *demo) fetch(ctx context.Context, s *story, c *client.Client, refs []artifacts.Ref) error {
	for _, a := range refs {
		if a.ContentType != "application/pdf" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(d.File), 0o755); err != nil {
			return fmt.Errorf("make folder of the PDF: %w", fileError(err))
		}
		_, got, err := download(ctx, c, a.Key, func(string) (string, error) { return d.File, nil })
		if err != nil {
			return err
		}
		s.tell("fetched", "%s, checksum verified", console.Bytes(got.Size))
		return nil
	}
	return &failure{exit: exitJobFailed, Code: string(packs.InvalidOutput), Message: "the job left no PDF"}
}

// story tells what happens, with the time since the start.
type story struct {
	con   *console.Console
	began time.Time
}

func (s *story) line(what, format string, args ...any) string {
	return fmt.Sprintf("%s %s  %s", s.con.Dim(fmt.Sprintf("%6.2f s", time.Since(s.began).Seconds())),
		s.con.Green(fmt.Sprintf("%-9s", what)), console.Clean(fmt.Sprintf(format, args...)))
}

func (s *story) tell(what, format string, args ...any) {
	s.con.Say("%s", s.line(what, format, args...))
}

// event tells what the job's own events say of its way.
func (s *story) event(e client.Event, bar *console.Progress) {
	job, ok := e.Job()
	if ok && job.State == jobs.Running && !job.CancelRequested {
		bar.Note("%s", s.line("claimed", "by %s, run %d", job.Worker, job.Runs))
	}
}
