package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// webhook is helmdeck webhook.
type webhook struct {
	Create     webhookCreate     `cmd:"" help:"Subscribe a URL to events of your jobs."`
	List       webhookList       `cmd:"" help:"List webhooks, oldest first."`
	Show       webhookShow       `cmd:"" help:"Show a webhook."`
	Delete     webhookDelete     `cmd:"" help:"Delete webhooks with what waits for them."`
	Enable     webhookEnable     `cmd:"" help:"Enable a webhook that was disabled."`
	Disable    webhookDisable    `cmd:"" help:"Send nothing to a webhook until it is enabled."`
	Rotate     webhookRotate     `cmd:"" help:"Give a webhook a new secret."`
	Test       webhookTest       `cmd:"" help:"Send a test event and say what became of it."`
	Deliveries webhookDeliveries `cmd:"" help:"List the attempts to deliver, newest first."`
	Replay     webhookReplay     `cmd:"" help:"Deliver events again."`
}

// Help shows with --help.
func (webhook) Help() string {
	return `A webhook is told of events of your jobs by signed HTTP requests, which are repeated for three days until it answers 2xx.
What they hold and how to verify them is in docs/webhooks.md.

Examples:

    helmdeck webhook create https://example.com/hooks --event job.failed
    helmdeck webhook test wh_abcdefghij234567
    helmdeck webhook deliveries wh_abcdefghij234567`
}

type webhookCreate struct {
	URL         string            `arg:"" help:"Where to post deliveries to."`
	Event       []string          `placeholder:"NAME" help:"Event to hear of, such as job.failed, again for more; * for all. The ends of jobs by default."`
	Pack        []string          `placeholder:"NAME" help:"Only jobs of this pack, or of a family such as slides.*; again for more."`
	Label       map[string]string `placeholder:"KEY=VALUE" help:"Only jobs with this label, again for more."`
	Format      string            `enum:"cloudevent,plain" default:"cloudevent" placeholder:"FORMAT" help:"Body: cloudevent, or plain for the object in it alone."`
	Description string            `placeholder:"TEXT" help:"What it is for."`
	SecretFile  string            `placeholder:"FILE" type:"path" help:"File with a whsec_… secret; one is made by default."`
	Disabled    bool              `help:"Send nothing until it is enabled."`
	caller
}

// Help shows with --help.
func (webhookCreate) Help() string {
	return `Prints the id and the secret. The secret is shown this once.

Examples:

    helmdeck webhook create https://example.com/hooks
    helmdeck webhook create https://example.com/hooks --event job.failed --event job.cancelled --pack 'slides.*'
    helmdeck webhook create https://example.com/hooks -o json | jq -r .secret > secret`
}

// Run creates.
func (w *webhookCreate) Run(ctx context.Context, con *console.Console) error {
	secret, err := secretFrom(w.SecretFile)
	if err != nil {
		return err
	}
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	enabled := !w.Disabled
	made, err := c.CreateWebhook(ctx, webhooks.Spec{
		URL: w.URL, Events: w.Event, Packs: w.Pack, Labels: w.Label, Format: webhooks.Format(w.Format),
		Description: w.Description, Secret: secret, Enabled: &enabled,
	})
	if err != nil {
		return err
	}
	return showSecret(con, made)
}

// secretFrom reads a secret, which is never given as a flag: other users of
// the machine see those.
func secretFrom(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", misused("secret: %v", err)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 {
		return "", misused("secret: %s is empty", path)
	}
	return string(b), nil
}

func showSecret(con *console.Console, made webhooks.Created) error {
	if con.JSON {
		return con.WriteJSON(made)
	}
	con.Say("Keep the secret: it is not shown again.")
	return con.Fields("id", made.ID, "secret", made.Secret)
}

type webhookList struct {
	Limit  int    `default:"50" help:"Webhooks on a page, 1 to 200."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (webhookList) Help() string {
	return `Examples:

    helmdeck webhook list
    helmdeck webhook list -o json | jq -r '.webhooks[] | select(.enabled | not).id'`
}

// Run lists.
func (w *webhookList) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Webhooks(ctx, w.Limit, w.Cursor)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Webhooks))
	for i, e := range list.Webhooks {
		remark := e.Description
		if !e.Enabled {
			remark = "disabled: " + e.DisabledReason
		}
		rows[i] = []string{e.ID, e.URL, strings.Join(e.Events, " "), console.Age(e.CreatedAt), remark}
	}
	if err := con.Table([]string{"ID", "URL", "EVENTS", "AGE", "REMARK"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

type webhookShow struct {
	ID string `arg:"" help:"Id of the webhook."`
	caller
}

// Help shows with --help.
func (webhookShow) Help() string {
	return `Examples:

    helmdeck webhook show wh_abcdefghij234567`
}

// Run shows.
func (w *webhookShow) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	e, err := c.Webhook(ctx, w.ID)
	if err != nil {
		return err
	}
	return showWebhook(con, e)
}

func showWebhook(con *console.Console, e webhooks.Endpoint) error {
	if con.JSON {
		return con.WriteJSON(e)
	}
	state := "enabled"
	if !e.Enabled {
		state = "disabled: " + e.DisabledReason
	}
	pairs := []string{
		"id", e.ID, "url", e.URL, "state", state, "events", strings.Join(e.Events, " "), "packs", strings.Join(e.Packs, " "),
		"format", string(e.Format), "description", e.Description, "caller", e.Caller.Subject,
		"created", console.Time(e.CreatedAt), "changed", console.Time(e.UpdatedAt), "old secret until", console.Time(e.OldSecretUntil),
	}
	for k, v := range e.Labels {
		pairs = append(pairs, "label", k+"="+v)
	}
	return con.Fields(pairs...)
}

type webhookDelete struct {
	IDs []string `arg:"" name:"id" help:"Ids of the webhooks."`
	caller
}

// Help shows with --help.
func (webhookDelete) Help() string {
	return `What still waits to be delivered goes with them.

Examples:

    helmdeck webhook delete wh_abcdefghij234567`
}

// Run deletes.
func (w *webhookDelete) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, id := range w.IDs {
		if err := c.DeleteWebhook(ctx, id); err != nil {
			return err
		}
		con.Say("deleted %s", id)
	}
	return nil
}

type webhookEnable struct {
	ID string `arg:"" help:"Id of the webhook."`
	caller
}

// Help shows with --help.
func (webhookEnable) Help() string {
	return `Events that came meanwhile are not delivered; see helmdeck webhook replay.

Examples:

    helmdeck webhook enable wh_abcdefghij234567`
}

// Run enables.
func (w *webhookEnable) Run(ctx context.Context, con *console.Console) error {
	return switchWebhook(ctx, con, w.connect, w.ID, true)
}

type webhookDisable struct {
	ID string `arg:"" help:"Id of the webhook."`
	caller
}

// Help shows with --help.
func (webhookDisable) Help() string {
	return `Examples:

    helmdeck webhook disable wh_abcdefghij234567`
}

// Run disables.
func (w *webhookDisable) Run(ctx context.Context, con *console.Console) error {
	return switchWebhook(ctx, con, w.connect, w.ID, false)
}

func switchWebhook(ctx context.Context, con *console.Console, connect func() (*client.Client, error), id string, on bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.Close()
	e, err := c.ChangeWebhook(ctx, id, webhooks.Change{Enabled: &on})
	if err != nil {
		return err
	}
	return showWebhook(con, e)
}

type webhookRotate struct {
	ID   string        `arg:"" help:"Id of the webhook."`
	Keep time.Duration `default:"24h" placeholder:"DURATION" help:"How long deliveries are signed by the old secret as well, 0 to 168h."`
	caller
}

// Help shows with --help.
func (webhookRotate) Help() string {
	return `Prints the new secret, this once. Put it into the receiver while the old one still counts.

Examples:

    helmdeck webhook rotate wh_abcdefghij234567
    helmdeck webhook rotate wh_abcdefghij234567 --keep 0s`
}

// Run rotates.
func (w *webhookRotate) Run(ctx context.Context, con *console.Console) error {
	if w.Keep < 0 || w.Keep > webhooks.MaxKeep {
		return misused("--keep must be between 0s and %s, got %s", webhooks.MaxKeep, w.Keep)
	}
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	made, err := c.RotateWebhook(ctx, w.ID, w.Keep)
	if err != nil {
		return err
	}
	return showSecret(con, made)
}

// hook are the flags of a job's own webhook.
type hook struct {
	Webhook           string   `placeholder:"URL" help:"Tell this URL of the job's end, see docs/webhooks.md."`
	WebhookEvent      []string `placeholder:"NAME" help:"Event to tell of instead, such as job.started, again for more; * for all."`
	WebhookSecretFile string   `placeholder:"FILE" type:"path" help:"File with the secret that signs what is sent."`
	WebhookFormat     string   `enum:"cloudevent,plain" default:"cloudevent" placeholder:"FORMAT" help:"Body: cloudevent, or plain for the object in it alone."`
}

// webhook gives the job its webhook.
func (h *hook) webhook() (func(*jobs.Request), error) {
	if h.Webhook == "" {
		if len(h.WebhookEvent) > 0 || h.WebhookSecretFile != "" {
			return nil, misused("--webhook-event and --webhook-secret-file go with --webhook")
		}
		return func(*jobs.Request) {}, nil
	}
	secret, err := secretFrom(h.WebhookSecretFile)
	return func(r *jobs.Request) {
		r.Webhook = &webhooks.Target{URL: h.Webhook, Secret: secret, Events: h.WebhookEvent, Format: webhooks.Format(h.WebhookFormat)}
	}, err
}
