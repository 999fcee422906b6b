package api_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

var update = flag.Bool("update", false, "write what the API answers into testdata")

const transcripts = "testdata/errors.txtar"

// TestErrorTranscripts replays requests a person can read and compares the
// answers byte for byte. In requests $fast is the id of a job that succeeded.
func TestErrorTranscripts(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.echo","input":{"text":"hi"}}`)
	if got := r.until(job.ID, ended); got.State != jobs.Succeeded {
		t.Fatalf("got %+v", got)
	}
	archive, err := txtar.ParseFile(transcripts)
	if err != nil {
		t.Fatal(err)
	}
	var out txtar.Archive
	out.Comment = archive.Comment
	want := map[string]string{}
	for _, f := range archive.Files {
		want[f.Name] = string(f.Data)
	}
	for _, f := range archive.Files {
		name, ok := strings.CutSuffix(f.Name, "/request")
		if !ok {
			continue
		}
		got := r.replay(t, strings.ReplaceAll(string(f.Data), "$fast", job.ID))
		got = strings.ReplaceAll(got, job.ID, "$fast")
		out.Files = append(out.Files, f, txtar.File{Name: name + "/answer", Data: []byte(got)})
		if diff := cmp.Diff(want[name+"/answer"], got); diff != "" && !*update {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(transcripts, txtar.Format(&out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// replay sends a request written as in HTTP, without Host and Content-Length,
// and returns status, telling headers and body.
func (r *rig) replay(t *testing.T, text string) string {
	t.Helper()
	head, body, _ := strings.Cut(text, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + "\nHost: example\n\n")))
	if err != nil {
		t.Fatalf("request %q: %v", text, err)
	}
	var header []string
	for name := range req.Header {
		header = append(header, name, req.Header.Get(name))
	}
	a := r.call(req.Method, req.RequestURI, "", body, header...)
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d %s\n", a.status, http.StatusText(a.status))
	for _, name := range []string{"Allow", "Content-Type", "Retry-After", "Www-Authenticate"} {
		if v := a.header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n" + a.body)
	return b.String()
}
