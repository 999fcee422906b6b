package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// artifact is helmdeck artifact.
type artifact struct {
	List artifactList `cmd:"" help:"List artifacts, newest first."`
	Get  artifactGet  `cmd:"" help:"Download an artifact."`
	Put  artifactPut  `cmd:"" help:"Upload a file and print its key."`
}

// Help shows with --help.
func (artifact) Help() string {
	return `Artifacts are files that packs made or callers uploaded. Packs take them by key.

Examples:

    key=$(helmdeck artifact put deck.md)
    helmdeck artifact get $key -f copy.md
    helmdeck artifact list --pack slides.render`
}

type artifactList struct {
	Pack   string `placeholder:"NAME" help:"Made by this pack; operator-uploads for uploads."`
	Name   string `placeholder:"TEXT" help:"With this text in the name, in any case."`
	Limit  int    `default:"50" help:"Artifacts on a page, 1 to 200."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (artifactList) Help() string {
	return `Examples:

    helmdeck artifact list --name .pdf
    helmdeck artifact list -o json | jq -r '.artifacts[].key'`
}

// Run lists.
func (a *artifactList) Run(ctx context.Context, con *console.Console) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Artifacts(ctx, client.ArtifactQuery{Pack: a.Pack, Name: a.Name, Limit: a.Limit, Cursor: a.Cursor})
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Artifacts))
	for i := range list.Artifacts {
		r := &list.Artifacts[i]
		rows[i] = []string{r.Key, console.Bytes(r.Size), r.ContentType, console.Age(r.CreatedAt), r.JobID}
	}
	if err := con.Table([]string{"KEY", "SIZE", "TYPE", "AGE", "JOB"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

type artifactGet struct {
	Key   string `arg:"" help:"Key of the artifact."`
	File  string `short:"f" placeholder:"FILE" help:"Where to write it: a file, a folder, or - for standard output. By default the artifact's name, here."`
	Force bool   `help:"Replace a file that is there."`
	caller
}

// Help shows with --help.
func (artifactGet) Help() string {
	return `The checksum is verified; a broken connection is taken up where it ended. The file appears when it is whole.

Examples:

    helmdeck artifact get slides.render/0a1b2c3d4e5f6071-deck.pdf
    helmdeck artifact get KEY -f - | pdftotext - -`
}

// Run downloads.
func (a *artifactGet) Run(ctx context.Context, con *console.Console) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if a.File == "-" {
		_, err := c.Download(ctx, a.Key, con.Out)
		return err
	}
	file, d, err := download(ctx, c, a.Key, a.place)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(map[string]any{
			"file": file, "key": a.Key, "size": d.Size, "content_type": d.ContentType, "sha256": d.SHA256,
		})
	}
	con.Say("%s, %s, sha256 %s", console.Bytes(d.Size), console.Clean(d.ContentType), d.SHA256)
	return con.Print("%s", file)
}

// place is the file that an artifact called name is written to.
func (a *artifactGet) place(name string) (string, error) {
	file := a.File
	if file == "" {
		file = name
	} else if info, err := os.Stat(file); err == nil && info.IsDir() {
		file = filepath.Join(file, name)
	}
	if _, err := os.Lstat(file); err == nil && !a.Force {
		return "", misused("%s is there already; say --force to replace it, or another name with -f", file)
	}
	return file, nil
}

// download writes an artifact beside the file that place names for it, and
// puts it there once it is whole and its checksum right.
func download(ctx context.Context, c *client.Client, key string, place func(name string) (string, error)) (file string, d client.Download, err error) {
	if file, err = place(baseName(key)); err != nil {
		return "", d, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".download-*")
	if err != nil {
		return "", d, fmt.Errorf("write %s: %w", file, fileError(err))
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone after the rename
	d, err = c.Download(ctx, key, f)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return "", d, err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return "", d, fmt.Errorf("write %s: %w", file, err)
	}
	return file, d, nil
}

// baseName is the file name in a key, "<namespace>/<hex>-<name>". It never
// leaves the folder it is put in.
func baseName(key string) string {
	name := path.Base(key)
	if _, rest, ok := strings.Cut(name, "-"); ok && rest != "" {
		name = rest
	}
	name = strings.TrimLeft(console.Clean(strings.ReplaceAll(name, `\`, "_")), ".")
	if name == "" || name == "/" {
		return "artifact"
	}
	return name
}

type artifactPut struct {
	File string `arg:"" help:"File to upload; - is standard input."`
	Name string `placeholder:"NAME" help:"Name it gets; that of the file by default."`
	Type string `placeholder:"TYPE" help:"Content type; found out by default."`
	caller
}

// Help shows with --help.
func (artifactPut) Help() string {
	return `Examples:

    helmdeck artifact put deck.md
    pg_dump app | helmdeck artifact put - --name app.sql`
}

// Run uploads.
func (a *artifactPut) Run(ctx context.Context, con *console.Console) error {
	from := con.In
	name := a.Name
	switch {
	case a.File != "-":
		f, err := os.Open(a.File)
		if err != nil {
			return misused("%w", fileError(err))
		}
		defer func() { _ = f.Close() }() // read-only
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return misused("%s is a folder; pack it into a file first", a.File)
		}
		if from = f; name == "" {
			name = filepath.Base(a.File)
		}
	case name == "":
		return misused("standard input has no name; give one with --name")
	case con.Typed():
		return misused("standard input is a terminal; pipe the content into it, or name a file")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	u, err := c.Upload(ctx, name, a.Type, from)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(u)
	}
	con.Say("%s, %s, sha256 %s", console.Bytes(u.Size), console.Clean(u.ContentType), u.SHA256)
	return con.Print("%s", u.ArtifactKey)
}
