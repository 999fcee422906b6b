package api

import (
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const (
	// uploads is the namespace of what callers upload (spec rest-api §11).
	uploads = "operator-uploads"
	// multipartOverhead is room for boundaries and part headers.
	multipartOverhead = 1 << 20
)

// linkTo is a download link for ref that needs no token for a while.
func (a *API) linkTo(r *http.Request, ref artifacts.Ref) string {
	return a.cfg.Artifacts.URL(r.Context(), a.base(r), ref)
}

// base is where this caller reaches the API.
func (a *API) base(r *http.Request) string {
	if a.cfg.PublicURL != "" {
		return a.cfg.PublicURL
	}
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

func (a *API) listArtifacts(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "pack", "name", "limit", "cursor")
	query := artifacts.Query{Pack: q.Text("pack"), Name: q.Text("name"), Cursor: q.Text("cursor"), Limit: 50}
	if err := q.Err(); err != nil {
		return err
	}
	// Other lists refuse a bad limit; clients of this one know it to be 50.
	if n, err := strconv.Atoi(q.Text("limit")); err == nil && n >= 1 && n <= maxPage {
		query.Limit = n
	}
	if c := callerOf(r.Context()); !c.Admin() {
		query.Tenant, query.Owner = c.TenantToken(), c.Owner()
	}
	refs, next, err := a.cfg.Artifacts.List(r.Context(), query)
	if err != nil {
		return err
	}
	list := client.ArtifactList{Artifacts: make([]artifacts.Ref, len(refs)), Count: len(refs), NextCursor: next}
	for i, ref := range refs {
		ref.URL = a.linkTo(r, ref)
		list.Artifacts[i] = ref
	}
	return x.writeJSON(http.StatusOK, list)
}

// download serves an artifact to the holder of a link, or of a token that
// may see it. Its route is public for the table's purposes: the right is
// checked here.
func (a *API) download(x *exchange, r *http.Request) error {
	key := r.PathValue("key")
	var c identity.Caller
	linked := r.URL.Query().Has("signature")
	if linked {
		if err := a.cfg.Artifacts.VerifyLink(key, r.URL.RawQuery); err != nil {
			return err
		}
	} else {
		var err error
		c, err = a.authorise(r, readPacks)
		if x.caller = c; err != nil {
			return err
		}
	}
	ref, body, err := a.cfg.Artifacts.Content(r.Context(), key)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read-only
	if !linked && !mayTouch(c, ref) {
		return artifacts.ErrNotFound
	}
	h := x.Header()
	h.Set("Content-Type", ref.ContentType)
	h.Set("Content-Disposition", ref.Disposition())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:")
	h.Set("Referrer-Policy", "no-referrer") // the address may be a signed link
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", `"`+ref.SHA256+`"`)
	out := &refusable{exchange: x}
	http.ServeContent(out, r, "", ref.CreatedAt, body)
	return out.answer(ref)
}

// refusable keeps back the answers that http.ServeContent gives in plain text
// when it refuses a request: a range outside the file, a failed If-Match.
type refusable struct {
	*exchange
	refused int
}

// WriteHeader implements http.ResponseWriter.
func (w *refusable) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.refused = status
		return
	}
	w.exchange.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *refusable) Write(b []byte) (int, error) {
	if w.refused != 0 {
		return len(b), nil
	}
	return w.exchange.Write(b)
}

// answer gives the refusal in the one form of errors, with its own status,
// which download managers go by.
func (w *refusable) answer(ref artifacts.Ref) error {
	if w.refused == 0 {
		return nil
	}
	e := packs.Errorf(packs.InvalidInput, "the artifact has %d bytes; ask for a range within them, or leave Range out", ref.Size)
	if w.refused == http.StatusPreconditionFailed {
		e = packs.Errorf(packs.SchemaMismatch, "the artifact is not the one that If-Match or If-Unmodified-Since names; its ETag is %q", ref.SHA256)
	}
	w.Header().Del("Content-Disposition")
	return w.writeJSON(w.refused, wire.ProblemOf(e))
}

func mayTouch(c identity.Caller, ref artifacts.Ref) bool {
	return c.Admin() || c.Owns(ref.Tenant, ref.Owner)
}

func (a *API) deleteArtifact(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	key := r.PathValue("key")
	ref, err := a.cfg.Artifacts.Stat(r.Context(), key)
	if err != nil {
		return err
	}
	if !mayTouch(callerOf(r.Context()), ref) {
		return artifacts.ErrNotFound
	}
	if err := a.cfg.Artifacts.Delete(r.Context(), key); err != nil {
		return err
	}
	return x.noContent()
}

// upload stores the first form part named "file".
func (a *API) upload(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	most := a.cfg.Limits.Upload
	if r.ContentLength > most+multipartOverhead {
		return tooLargeFile(most)
	}
	r.Body = http.MaxBytesReader(x, &patient{body: r.Body, x: x}, most+multipartOverhead)
	// The deadline is the transfer's, not the connection's.
	defer func() { _ = x.deadlines.SetReadDeadline(time.Time{}) }()
	form, err := r.MultipartReader()
	if err != nil {
		return packs.Fail(packs.InvalidInput, err,
			"send the file as multipart/form-data in the field file, for instance curl -F file=@deck.md")
	}
	part, err := filePart(form)
	if err != nil {
		return err
	}
	file := &formFile{r: part, most: most, left: most}
	c := callerOf(r.Context())
	ref, err := a.cfg.Artifacts.Put(r.Context(), artifacts.Draft{
		Pack: uploads, Name: artifacts.BaseName(part.FileName()), ContentType: declaredType(part),
		Tenant: c.TenantToken(), Owner: c.Owner(),
	}, file)
	switch {
	case file.err != nil:
		return file.err
	case errors.Is(err, artifacts.ErrNoSpace), errors.Is(err, artifacts.ErrTooLarge), r.Context().Err() != nil:
		return err
	case err != nil:
		return packs.Fail(packs.ArtifactFailed, err, "the file could not be stored; try again")
	}
	if err := a.cfg.Artifacts.Publish(r.Context(), ref); err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, client.Upload{
		ArtifactKey: ref.Key, URL: a.linkTo(r, ref), Size: ref.Size,
		ContentType: ref.ContentType, Filename: ref.Name, SHA256: ref.SHA256,
	})
}

func filePart(form *multipart.Reader) (*multipart.Part, error) {
	for {
		part, err := form.NextPart()
		var tooLarge *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF):
			return nil, packs.Errorf(packs.InvalidInput, "the form has no field file; send the file in it")
		case errors.As(err, &tooLarge):
			return nil, err
		case err != nil:
			return nil, malformedForm(err)
		case part.FormName() == "file":
			return part, nil
		}
	}
}

// declaredType is the part's content type unless it is the one that clients
// send when they do not know.
func declaredType(part *multipart.Part) string {
	if t := part.Header.Get("Content-Type"); t != "application/octet-stream" {
		return t
	}
	return ""
}

func malformedForm(err error) error {
	return packs.Fail(packs.InvalidInput, err, "the form is malformed or ended too early; nothing was stored, send it again")
}

func tooLargeFile(most int64) error {
	return packs.Errorf(packs.PayloadTooLarge, "a file may have at most %d bytes; split it or fetch it by a pack", most)
}

// formFile is the file in a form. It remembers its own error, which tells a
// bad form from a bad store, and refuses the first byte over the limit, where
// io.LimitReader would store a part of the file as if it were all.
type formFile struct {
	r    io.Reader
	most int64
	left int64
	err  error
}

func (f *formFile) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	var tooLarge *http.MaxBytesError
	if f.left -= int64(n); f.left < 0 || errors.As(err, &tooLarge) {
		f.err = tooLargeFile(f.most)
		return 0, f.err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = malformedForm(err)
		return n, f.err
	}
	return n, err
}

// patient gives a transfer as long as it takes, as long as bytes come.
type patient struct {
	body io.ReadCloser
	x    *exchange
}

func (p *patient) Read(b []byte) (int, error) {
	// Connections without deadlines are those of tests.
	_ = p.x.deadlines.SetReadDeadline(time.Now().Add(p.x.stall))
	n, err := p.body.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("read body: %w", err)
	}
	return n, err
}

func (p *patient) Close() error { return p.body.Close() }
