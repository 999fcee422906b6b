package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

type webhookTest struct {
	ID   string        `arg:"" help:"Id of the webhook."`
	Wait time.Duration `default:"30s" placeholder:"DURATION" help:"How long to wait for its answer; 0s not at all."`
	caller
}

// Help shows with --help.
func (webhookTest) Help() string {
	return `The event is webhook.test. It is sent once, not repeated.

Examples:

    helmdeck webhook test wh_abcdefghij234567`
}

// logPause is the time between two looks into the log.
const logPause = 250 * time.Millisecond

// Run tests.
func (w *webhookTest) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	id, err := c.TestWebhook(ctx, w.ID)
	if err != nil {
		return err
	}
	if w.Wait == 0 {
		if con.JSON {
			return con.WriteJSON(client.Queued{Delivery: id})
		}
		return con.Print("%s", id)
	}
	a, err := w.result(ctx, c, id)
	if err != nil {
		return err
	}
	if con.JSON {
		err = con.WriteJSON(a)
	} else {
		err = showAttempt(con, a)
	}
	if err == nil && a.Outcome != webhooks.Delivered {
		err = &failure{exit: exitJobFailed, Code: "not_delivered", Message: "the test was not delivered: " + a.Error}
	}
	return err
}

// result waits for what became of the delivery.
func (w *webhookTest) result(ctx context.Context, c *client.Client, delivery string) (webhooks.Attempt, error) {
	timeout := time.After(w.Wait)
	tick := time.NewTicker(logPause)
	defer tick.Stop()
	for {
		list, err := c.Deliveries(ctx, w.ID, webhooks.LogQuery{Delivery: delivery, Limit: 1})
		if err != nil {
			return webhooks.Attempt{}, err
		}
		if len(list.Deliveries) > 0 {
			return list.Deliveries[0], nil
		}
		select {
		case <-ctx.Done():
			return webhooks.Attempt{}, ctx.Err()
		case <-timeout:
			return webhooks.Attempt{}, &failure{exit: exitRetry, Code: "timeout", Message: fmt.Sprintf(
				"nothing is known of the test after %s; look later with: helmdeck webhook deliveries %s", w.Wait, w.ID)}
		case <-tick.C:
		}
	}
}

func showAttempt(con *console.Console, a webhooks.Attempt) error {
	status := ""
	if a.Status > 0 {
		status = fmt.Sprint(a.Status)
	}
	return con.Fields("delivery", a.Delivery, "event", a.Event, "outcome", string(a.Outcome), "status", status,
		"took", fmt.Sprintf("%d ms", a.LatencyMS), "error", a.Error, "answer", a.Response)
}

type webhookDeliveries struct {
	ID       string `arg:"" optional:"" help:"Id of the webhook."`
	Job      string `placeholder:"ID" help:"Instead: a job with a webhook of its own."`
	Delivery string `placeholder:"ID" help:"Attempts of this delivery alone."`
	Limit    int    `default:"50" help:"Attempts on a page, 1 to 200."`
	Cursor   string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (webhookDeliveries) Help() string {
	return `Shows at most the last 1,000 attempts of the last 7 days.

Examples:

    helmdeck webhook deliveries wh_abcdefghij234567
    helmdeck webhook deliveries --job 0195a1b2-0000-7000-8000-0000000000a1
    helmdeck webhook deliveries wh_abcdefghij234567 -o json | jq '.deliveries[] | select(.outcome=="failed")'`
}

// Run lists.
func (w *webhookDeliveries) Run(ctx context.Context, con *console.Console) error {
	if (w.ID == "") == (w.Job == "") {
		return misused("name a webhook, or a job with --job")
	}
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	q := webhooks.LogQuery{Delivery: w.Delivery, Limit: w.Limit, Cursor: w.Cursor}
	var list client.DeliveryList
	if w.Job != "" {
		list, err = c.JobDeliveries(ctx, w.Job, q)
	} else {
		list, err = c.Deliveries(ctx, w.ID, q)
	}
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Deliveries))
	for i, a := range list.Deliveries {
		remark := a.Error
		if !a.NextAt.IsZero() {
			remark = "next at " + console.Time(a.NextAt) + "; " + remark
		}
		rows[i] = []string{a.Delivery, a.Event, fmt.Sprint(a.Attempt), string(a.Outcome), fmt.Sprint(a.Status), fmt.Sprintf("%d ms", a.LatencyMS), console.Age(a.At), remark}
	}
	if err := con.Table([]string{"DELIVERY", "EVENT", "ATTEMPT", "OUTCOME", "STATUS", "TOOK", "AGE", "REMARK"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

type webhookReplay struct {
	ID         string   `arg:"" help:"Id of the webhook, or with --job of the job."`
	Deliveries []string `arg:"" name:"delivery" help:"Ids of the deliveries, as helmdeck webhook deliveries shows them."`
	Job        bool     `help:"ID is a job with a webhook of its own."`
	caller
}

// Help shows with --help.
func (webhookReplay) Help() string {
	return `The receiver sees the same webhook-id as before. The retries begin anew.

Examples:

    helmdeck webhook replay wh_abcdefghij234567 0195a1b2-0000-7000-8000-0000000000e1
    helmdeck webhook replay --job 0195a1b2-0000-7000-8000-0000000000a1 0195a1b2-0000-7000-8000-0000000000e1`
}

// Run replays.
func (w *webhookReplay) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, d := range w.Deliveries {
		if w.Job {
			err = c.ReplayJobDelivery(ctx, w.ID, d)
		} else {
			err = c.ReplayDelivery(ctx, w.ID, d)
		}
		if err != nil {
			return err
		}
		con.Say("queued %s", d)
	}
	return nil
}
