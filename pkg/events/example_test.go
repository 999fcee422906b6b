package events_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Follow one job from its first event to its last.
func ExampleSubscriber_Follow() {
	caller := identity.Caller{Subject: "ada@example.org", Tenant: "acme"}
	nc, err := nats.Connect("nats://127.0.0.1:4222",
		nats.UserInfo("ada", "secret"),
		nats.CustomInboxPrefix(events.InboxPrefix(caller.Owner())),
		nats.MaxReconnects(-1))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer nc.Close()
	sub, err := events.NewSubscriber(nc, events.Options{Caller: caller})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// The cursor kept last time, or "" for everything from the first event on.
	from, err := events.ParseCursor(os.Getenv("CURSOR"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	for e, err := range sub.Follow(ctx, events.Filter{JobID: "0195a1b2-0000-7000-8000-0000000000a1"}, from) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // the last thing yielded
			return
		}
		switch e.Kind {
		case events.KindProgress:
			p, err := events.Data[jobs.Progress](e.Event)
			if err == nil {
				fmt.Printf("%3.0f %% %s\n", p.Percent, p.Message)
			}
		case events.KindLifecycle:
			job, err := events.Data[jobs.Job](e.Event)
			if err == nil {
				fmt.Println(job.State)
			}
		}
		fmt.Println("to go on here another time:", e.Cursor)
	}
}
