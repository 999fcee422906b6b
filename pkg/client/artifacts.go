package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
)

// ArtifactQuery selects artifacts.
type ArtifactQuery struct {
	Pack   string // namespace
	Name   string // part of the name, in any case
	Limit  int    // 1 to 200; 0: 50
	Cursor string
}

// Artifacts lists artifacts, newest first.
func (c *Client) Artifacts(ctx context.Context, q ArtifactQuery) (list ArtifactList, err error) {
	err = c.get(ctx, pathOf("artifacts"), values("pack", q.Pack, "name", q.Name, "limit", number(q.Limit), "cursor", q.Cursor), &list)
	return list, err
}

// Download is what Download found.
type Download struct {
	Name        string // base name of the file
	ContentType string
	Size        int64 // bytes written
	SHA256      string
}

// Download writes the artifact under key to w. A connection that is lost half
// way is taken up where it ended. The checksum is compared at the end: on an
// error w may hold a part of the artifact, or bytes that are not it.
func (c *Client) Download(ctx context.Context, key string, w io.Writer) (Download, error) {
	var d Download
	sum := sha256.New()
	etag := ""
	for try := 1; ; try++ {
		header := map[string]string{}
		if d.Size > 0 {
			header["Range"], header["If-Range"] = fmt.Sprintf("bytes=%d-", d.Size), etag
		}
		res, err := c.send(ctx, call{method: http.MethodGet, path: downloadPath(key), header: header, repeat: true})
		if err != nil {
			return d, err
		}
		if d.Size > 0 && res.StatusCode != http.StatusPartialContent {
			_ = res.Body.Close() // it begins anew; w has the old beginning
			return d, fmt.Errorf("download %s: the artifact changed on the way", key)
		}
		if d.Size == 0 {
			etag = res.Header.Get("ETag")
			d.describe(res)
		}
		n, err := copyBody(io.MultiWriter(w, sum), res)
		d.Size += n
		if err == nil {
			break
		}
		var failed writeError
		if errors.As(err, &failed) || ctx.Err() != nil || try == tries {
			return d, fmt.Errorf("download %s: %w", key, err)
		}
	}
	d.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if want := strings.Trim(etag, `"`); len(want) == sha256.Size*2 && want != d.SHA256 {
		return d, fmt.Errorf("download %s: got SHA-256 %s, want %s", key, d.SHA256, want)
	}
	return d, nil
}

// DownloadURL is the address Download reads from; it needs the token.
func (c *Client) DownloadURL(key string) string { return c.base.String() + downloadPath(key) }

func downloadPath(key string) string {
	return pathOf(append([]string{"artifacts", "download"}, strings.Split(key, "/")...)...)
}

func (d *Download) describe(res *http.Response) {
	d.ContentType = res.Header.Get("Content-Type")
	if _, params, err := mime.ParseMediaType(res.Header.Get("Content-Disposition")); err == nil {
		d.Name = params["filename"]
	}
}

// writeError is an error of the place the caller writes to: reading again
// does not help.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

type checkedWriter struct{ w io.Writer }

func (c checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		err = writeError{err}
	}
	return n, err
}

func copyBody(w io.Writer, res *http.Response) (int64, error) {
	defer func() { _ = res.Body.Close() }() // read-only
	return io.Copy(checkedWriter{w}, res.Body)
}

// DeleteArtifact deletes an artifact.
func (c *Client) DeleteArtifact(ctx context.Context, key string) error {
	return c.exchange(ctx, call{
		method: http.MethodDelete, path: pathOf(append([]string{"artifacts"}, strings.Split(key, "/")...)...),
	}, nil)
}

// Upload stores the bytes of r, read once and streamed, as a file. An empty
// contentType leaves it to the server.
func (c *Client) Upload(ctx context.Context, name, contentType string, r io.Reader) (u Upload, err error) {
	src := &source{r: r}
	body, formType, err := form(name, contentType, src)
	if err != nil {
		return u, fmt.Errorf("upload %s: %w", name, err)
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("artifacts", "upload"), stream: body,
		header: map[string]string{"Content-Type": formType},
	}, &u)
	if failed := src.failed(); failed != nil {
		return u, fmt.Errorf("upload %s: %w", name, failed)
	}
	return u, err
}

// source remembers the error of the caller's reader, which says more than
// what became of it on the way. The transport may still read when the answer
// is there.
type source struct {
	r   io.Reader
	mu  sync.Mutex // guards err
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
	}
	return n, err
}

func (s *source) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

var quoteEscaper = strings.NewReplacer("\\", "\\\\", `"`, "\\\"", "\r", "", "\n", "")

// form wraps r as the field file of a form.
func form(name, contentType string, r io.Reader) (body io.Reader, formType string, err error) {
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	h := textproto.MIMEHeader{}
	h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename="%s"`, quoteEscaper.Replace(name)))
	h.Set("Content-Type", contentType)
	var head bytes.Buffer
	w := multipart.NewWriter(&head)
	if _, err := w.CreatePart(h); err != nil {
		return nil, "", err
	}
	tail := "\r\n--" + w.Boundary() + "--\r\n"
	return io.MultiReader(&head, r, strings.NewReader(tail)), w.FormDataContentType(), nil
}
