package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// filePath is the path of a file request, clean and relative. os.Root refuses
// what symbolic links make of it.
func filePath(r *http.Request) (string, error) {
	p := r.URL.Query().Get("path")
	if p == "" || !filepath.IsLocal(p) {
		return "", invalid("path must be relative and stay in the scratch folder")
	}
	return path.Clean(p), nil
}

// fileError turns what the file system says into an answer.
func fileError(p string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return notFound("no file " + p)
	case errors.Is(err, syscall.EFBIG):
		return tooLarge(p)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &refusal{http.StatusInsufficientStorage, wire.CodeFailed, "no space left for " + p}
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		// An escape, a file in the way of a folder, no permission.
		return invalid(p + ": " + pe.Err.Error())
	}
	return fmt.Errorf("file %s: %w", p, err)
}

func tooLarge(p string) error {
	return &refusal{http.StatusRequestEntityTooLarge, wire.CodeTooLarge, p + " is larger than the sidecar allows"}
}

// writeFile stores the body under a temporary name and moves it into place,
// so that a reader sees all of it or nothing.
func (a *Agent) writeFile(w http.ResponseWriter, r *http.Request) error {
	ctx, span := a.tracer.Start(r.Context(), "agent.write_file")
	defer span.End()
	p, err := filePath(r)
	if err != nil {
		return err
	}
	if dir := path.Dir(p); dir != "." {
		if err := a.scratch.MkdirAll(dir, 0o755); err != nil {
			return fileError(p, err)
		}
	}
	temp := path.Join(path.Dir(p), ".helmdeck-"+uuid.NewString())
	if err := a.store(ctx, temp, r.Body); err != nil {
		_ = a.scratch.Remove(temp) // may not exist
		return storeError(p, err)
	}
	if err := a.scratch.Rename(temp, p); err != nil {
		_ = a.scratch.Remove(temp)
		return fileError(p, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func storeError(p string, err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(p)
	}
	return fileError(p, err)
}

func (a *Agent) store(ctx context.Context, name string, body io.Reader) error {
	f, err := a.scratch.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	limit := a.boot.Limits.FileBytes
	if limit > 0 {
		body = io.LimitReader(body, limit+1)
	}
	n, err := io.Copy(f, body)
	if err == nil && limit > 0 && n > limit {
		err = &http.MaxBytesError{Limit: limit}
	}
	if err == nil {
		err = ctx.Err()
	}
	return errors.Join(err, f.Close())
}

// readFile streams a regular file. It opens without blocking: a pipe that
// nobody writes to is not a file here.
func (a *Agent) readFile(w http.ResponseWriter, r *http.Request) error {
	_, span := a.tracer.Start(r.Context(), "agent.read_file")
	defer span.End()
	p, err := filePath(r)
	if err != nil {
		return err
	}
	f, err := a.scratch.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fileError(p, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fileError(p, err)
	}
	if !info.Mode().IsRegular() {
		return invalid(p + " is not a regular file")
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	w.WriteHeader(http.StatusOK)
	// A file that shrinks meanwhile ends the answer early, which the reader
	// sees as an error because the length was promised.
	_, err = io.CopyN(w, f, info.Size())
	if err != nil {
		a.log.Debug().Err(err).Msg("reader of a file is gone")
	}
	return nil
}
