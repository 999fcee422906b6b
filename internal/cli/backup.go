package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus/backup"
	"github.com/helmdeck/helmdeck/internal/cli/console"
)

type busBackup struct {
	Dir    string `arg:"" type:"path" placeholder:"DIR" help:"Folder to write to; made when missing, and must be empty."`
	Verify bool   `help:"Read everything again when it is written, and compare the digests."`
	busFlags
}

// Help shows with --help.
func (busBackup) Help() string {
	return `Copies queues, schedules, events, buckets and the state of their consumers, with a manifest of counts and digests. Everything may run meanwhile: whatever was accepted before the backup began is in it. The folder holds the inputs and outputs of jobs: keep it as secret as the bus, and with it keys.json, token and the nats-*.json files. Artifacts in an S3 bucket are not in it.

Examples:

    helmdeck bus backup /var/backups/helmdeck-$(date +%F) --data /var/lib/helmdeck
    helmdeck bus backup backup-1 --nats nats://10.0.0.5:4222 --nats-creds nats-admin.json --profile ha --verify`
}

// Run copies.
func (b *busBackup) Run(ctx context.Context, con *console.Console) error {
	role, err := b.role()
	if err != nil {
		return err
	}
	m, err := app.BackupBus(ctx, role, b.Dir, showProgress(con))
	if err == nil && b.Verify {
		m, err = backup.Verify(ctx, b.Dir)
	}
	if err != nil {
		return backupFailure(err)
	}
	return showBackup(con, b.Dir, m)
}

type busRestore struct {
	Dir     string `arg:"" type:"path" placeholder:"DIR" help:"Folder of a backup."`
	Verify  bool   `help:"Only check that the backup is whole; no server is needed."`
	Replace bool   `help:"Throw away what the bus holds now."`
	busFlags
}

// Help shows with --help.
func (busRestore) Help() string {
	return `Checks every digest, then restores all streams and brings them to the topology of this program. The bus must run, and nothing else: no API, no worker. What waited or ran goes on after the next start, what had ended stays ended.

Examples:

    helmdeck bus restore backup-1 --verify
    helmdeck up --data /var/lib/helmdeck --roles none &
    helmdeck bus restore backup-1 --data /var/lib/helmdeck`
}

// Run restores.
func (b *busRestore) Run(ctx context.Context, con *console.Console) error {
	if b.Verify {
		m, err := backup.Verify(ctx, b.Dir)
		if err != nil {
			return backupFailure(err)
		}
		return showBackup(con, b.Dir, m)
	}
	role, err := b.role()
	if err != nil {
		return err
	}
	m, err := app.RestoreBus(ctx, role, b.Dir, b.Replace, showProgress(con))
	if err != nil {
		return backupFailure(err)
	}
	return showBackup(con, b.Dir, m)
}

func showProgress(con *console.Console) backup.Progress {
	return func(stream string, done, all int) { con.Say("%2d/%d %s", done, all, stream) }
}

func showBackup(con *console.Console, dir string, m backup.Manifest) error {
	if con.JSON {
		return con.WriteJSON(m)
	}
	return con.Fields(
		"folder", dir,
		"taken", fmt.Sprintf("%s, in %s", m.StartedAt.Local().Format(time.DateTime), m.FinishedAt.Sub(m.StartedAt).Round(time.Millisecond)),
		"by", "helmdeck "+m.Version,
		"streams", fmt.Sprint(len(m.Streams)),
		"messages", fmt.Sprint(m.Messages()),
		"bytes", fmt.Sprint(m.Bytes()),
	)
}

func backupFailure(err error) error {
	for _, refusal := range []error{backup.ErrNotEmpty, backup.ErrInUse, backup.ErrOther, backup.ErrNewer, backup.ErrDamaged} {
		if errors.Is(err, refusal) {
			return &failure{exit: exitInput, Code: "invalid_input", Message: err.Error(), err: err}
		}
	}
	return busFailure(err)
}
