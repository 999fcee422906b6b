package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// old is an attempt of l that began an hour ago and was silent since.
func old(l *ledger, cfg Config) *attempt {
	cfg.ID, cfg.Ledger, cfg.Log, cfg.StallAfter = "me", l, zerolog.Nop(), 5*time.Minute
	job := jobs.Job{ID: "j", Pack: "t.save", Version: "v1", State: jobs.Running, Runs: 1, Worker: "me", Caller: identity.Caller{Subject: "ann"}}
	a := &attempt{w: New(cfg), claimed: job, job: job, log: zerolog.Nop(), delivery: &message{}, begun: time.Now().Add(-time.Hour)}
	a.sub = jobs.Submission{Job: job, Input: []byte("{}")}
	a.ctx, a.halt = context.WithCancelCause(context.Background())
	return a
}

func TestSilenceStopsARunAndSignsDoNot(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*attempt)
		stalled bool
	}{
		"silent":                       {func(*attempt) {}, true},
		"a sign":                       {(*attempt).sign, false},
		"a longer quiet time":          {func(a *attempt) { a.quiet = 2 * time.Hour }, false},
		"a quiet time that is over":    {func(a *attempt) { a.quiet = 30 * time.Minute }, true},
		"a quiet time below the usual": {func(a *attempt) { a.quiet = time.Nanosecond; a.signAt.Store(int64(56 * time.Minute)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			a := old(l, Config{})
			l.push(func(j *jobs.Job) { *j = a.job })
			tt.change(a)
			a.keepAlive(t.Context())
			if got := errors.Is(context.Cause(a.ctx), errStalled); got != tt.stalled {
				t.Errorf("stalled %v (%v), want %v", got, context.Cause(a.ctx), tt.stalled)
			}
		})
	}
}

// TestBytesOfARunAreSigns: the worker hears of what passes through the run,
// and of the quiet time of its pack.
func TestBytesOfARunAreSigns(t *testing.T) {
	t.Parallel()
	store, err := artifacts.New(artifacts.Config{Blobs: artifactstest.NewBlobs(0), Index: artifactstest.NewIndex(), Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	pack := packs.Define(packs.Spec[struct{}, struct{}]{
		Name: "t.save", Summary: "s", Needs: packs.Needs{Artifacts: true}, Quiet: time.Minute,
		Run: func(ctx context.Context, run *packs.Run, _ struct{}) (struct{}, error) {
			_, err := run.SaveArtifact(ctx, "a.txt", "", strings.NewReader("bytes"))
			return struct{}{}, err
		},
	})
	a := old(&ledger{}, Config{Packs: packs.NewCatalog(pack), Artifacts: store, ScratchDir: t.TempDir()})
	if _, err := a.invoke(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.signAt.Load() == 0 || a.quiet != time.Minute {
		t.Errorf("got sign at %s and quiet time %s", time.Duration(a.signAt.Load()), a.quiet)
	}
}
