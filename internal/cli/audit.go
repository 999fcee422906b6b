package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// auditCmd is helmdeck audit.
type auditCmd struct {
	List   auditList   `cmd:"" help:"List records, newest first."`
	Verify auditVerify `cmd:"" help:"Check that nothing was removed, edited or cut off."`
	Export auditExport `cmd:"" help:"Write records as JSON lines, oldest first."`
}

// Help shows with --help.
func (auditCmd) Help() string {
	return `The trail has a record of every call, the end of every job, every sidecar and its connections. Administrators see all, others what they did themselves. See docs/audit.md.

Examples:

    helmdeck audit list --severity error --from 24h
    helmdeck audit verify
    helmdeck audit export --from 2026-01-01T00:00:00Z > audit.jsonl`
}

// auditFilters are the flags that select records.
type auditFilters struct {
	From     string `placeholder:"TIME|AGE" help:"Happened at or after a time (RFC 3339) or since so long (2h)."`
	To       string `placeholder:"TIME|AGE" help:"Happened before it."`
	Type     string `placeholder:"TYPE" help:"Records of this type, such as request, job_end, lease, egress, egress_refused, token or policy."`
	Actor    string `placeholder:"SUBJECT" help:"Records of what this subject did."`
	Tenant   string `placeholder:"NAME" help:"Records of this tenant."`
	Session  string `placeholder:"ID" help:"Records of this session."`
	Job      string `placeholder:"ID" help:"Records of this job."`
	Severity string `placeholder:"info|warning|error" help:"Records of this severity."`
}

func (f *auditFilters) query() (q client.AuditQuery, err error) {
	q = client.AuditQuery{
		EventType: f.Type, ActorSubject: f.Actor, Tenant: f.Tenant, SessionID: f.Session, JobID: f.Job, Severity: f.Severity,
	}
	if q.From, err = moment("--from", f.From); err != nil {
		return q, err
	}
	q.To, err = moment("--to", f.To)
	return q, err
}

type auditList struct {
	auditFilters
	Limit  int    `default:"50" help:"Records on a page, 1 to 1000."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (auditList) Help() string {
	return `A page costs the server a bounded number of reads; when few records match it may be short and still have a next one.

Examples:

    helmdeck audit list --actor ann --from 1h
    helmdeck audit list --type egress_refused
    helmdeck audit list --job ID -o json | jq .entries`
}

// Run lists.
func (a *auditList) Run(ctx context.Context, con *console.Console) error {
	q, err := a.query()
	if err != nil {
		return err
	}
	q.Limit, q.Cursor = a.Limit, a.Cursor
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Audit(ctx, q)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Entries))
	for i := range list.Entries {
		e := &list.Entries[i]
		rows[i] = []string{strconv.FormatUint(e.ID, 10), console.Time(e.Timestamp), severityText(con, e.Severity), e.EventType, e.ActorSubject, auditText(e)}
	}
	if err := con.Table([]string{"ID", "TIME", "SEVERITY", "TYPE", "ACTOR", "WHAT"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

func severityText(con *console.Console, s string) string {
	switch s {
	case "error":
		return con.Red(s)
	case "warning":
		return con.Yellow(s)
	}
	return s
}

// auditText says in a line what a record is about.
func auditText(e *client.AuditEntry) string {
	text := ""
	if e.Method != "" {
		text = fmt.Sprintf("%s %s %d", e.Method, e.Path, e.StatusCode)
	}
	if e.JobID != "" {
		text += " job " + e.JobID
	}
	if e.SessionID != "" {
		text += " session " + e.SessionID
	}
	if e.Method == "" && len(e.Payload) > 0 {
		text += " " + string(e.Payload)
	}
	if most := 160; len(text) > most {
		text = text[:most] + "…"
	}
	return console.Clean(text)
}

type auditVerify struct {
	From string `placeholder:"TIME|AGE" help:"Check records sealed at or after a time (RFC 3339) or since so long (24h); all by default."`
	To   string `placeholder:"TIME|AGE" help:"Check records sealed before it."`
	caller
}

// Help shows with --help.
func (auditVerify) Help() string {
	return `Exit code 1 when there is a fault. The newest id and hash that it prints are worth keeping elsewhere: a later trail must still have them.

Examples:

    helmdeck audit verify
    helmdeck audit verify --from 24h -o json`
}

// Run checks, call after call.
func (a *auditVerify) Run(ctx context.Context, con *console.Console) error {
	from, err := moment("--from", a.From)
	if err != nil {
		return err
	}
	to, err := moment("--to", a.To)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	var whole client.AuditReport
	for after := uint64(0); ; after = whole.Next {
		part, err := c.VerifyAudit(ctx, from, to, after)
		if err != nil {
			return err
		}
		whole = joined(whole, part)
		if whole.Next == 0 {
			break
		}
		con.Say("%d records checked, at id %d", whole.Checked, whole.Next)
	}
	if err := showReport(con, whole); err != nil {
		return err
	}
	if !whole.OK {
		return &failure{exit: exitInternal, Code: "audit_fault", Message: fmt.Sprintf("the audit trail has %d faults; see docs/audit.md", len(whole.Faults))}
	}
	return nil
}

// joined is the report of two parts that follow each other.
func joined(a, b client.AuditReport) client.AuditReport {
	b.Checked += a.Checked
	if n := len(a.Days); n > 0 && len(b.Days) > 0 && a.Days[n-1].Day == b.Days[0].Day {
		b.Days[0].First = a.Days[n-1].First
		a.Days = a.Days[:n-1]
	}
	b.Days = append(a.Days, b.Days...)
	b.Faults = append(a.Faults, b.Faults...)
	b.OK = len(b.Faults) == 0
	if b.HeadID == 0 {
		b.HeadID, b.HeadHash = a.HeadID, a.HeadHash
	}
	return b
}

func showReport(con *console.Console, r client.AuditReport) error {
	if con.JSON {
		return con.WriteJSON(r)
	}
	rows := make([][]string, len(r.Days))
	for i, d := range r.Days {
		anchored := "no"
		if d.Anchored {
			anchored = "yes"
		}
		rows[i] = []string{d.Day, strconv.FormatUint(d.First, 10), strconv.FormatUint(d.Last, 10), anchored, d.Hash}
	}
	if err := con.Table([]string{"DAY", "FIRST", "LAST", "ANCHORED", "HASH"}, rows); err != nil {
		return err
	}
	for _, f := range r.Faults {
		at := strconv.FormatUint(f.ID, 10)
		if f.To > f.ID {
			at += "-" + strconv.FormatUint(f.To, 10)
		}
		if err := con.Print("%s %s: %s", con.Red(f.Kind), at, f.Message); err != nil {
			return err
		}
	}
	verdict := con.Green("no fault")
	if !r.OK {
		verdict = con.Red("faults")
	}
	return con.Print("%d records checked: %s; newest %d %s", r.Checked, verdict, r.HeadID, r.HeadHash)
}

type auditExport struct {
	auditFilters
	File string `short:"f" placeholder:"FILE" type:"path" help:"Write to a file, mode 0600; else to standard output."`
	caller
}

// Help shows with --help.
func (auditExport) Help() string {
	return `Each line is a record byte for byte as it was sealed, so its hash can be computed again: see docs/audit.md.

Examples:

    helmdeck audit export > audit.jsonl
    helmdeck audit export --from 24h --file yesterday.jsonl
    helmdeck audit export --type job_end | jq -r .job_id`
}

// Run exports.
func (a *auditExport) Run(ctx context.Context, con *console.Console) (err error) {
	q, err := a.query()
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	body, err := c.ExportAudit(ctx, q)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read-only
	out := con.Out
	if a.File != "" {
		f, err := os.OpenFile(a.File, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return fileError(err)
		}
		out = f
		defer func() {
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}()
	}
	if _, err := io.Copy(out, body); err != nil {
		return fmt.Errorf("the export broke off before its end, run it again: %w", err)
	}
	return nil
}
