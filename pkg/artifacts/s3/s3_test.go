package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3/s3test"
)

func TestBlobs(t *testing.T) {
	t.Parallel()
	artifactstest.TestBlobs(t, func(t *testing.T) artifacts.Blobs { return open(t, server.Config(newBucket())) })
}

// raw speaks to the server beside the package, to see what really lies there.
func raw(t *testing.T) minio.Core {
	t.Helper()
	core, err := minio.NewCore(server.Endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(s3test.AccessKey, s3test.SecretKey, ""), Region: s3.DefaultRegion,
	})
	if err != nil {
		t.Fatal(err)
	}
	return *core
}

// objects lists the names of all objects of a bucket below prefix.
func objects(t *testing.T, bucket, prefix string) []string {
	t.Helper()
	var names []string
	for o := range raw(t).ListObjectsIter(t.Context(), bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		names = append(names, o.Key)
	}
	return names
}

func uploads(t *testing.T, bucket string) int {
	t.Helper()
	page, err := raw(t).ListMultipartUploads(t.Context(), bucket, "", "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Uploads)
}

func put(t *testing.T, b artifacts.Blobs, key string, r io.Reader) {
	t.Helper()
	if _, _, err := b.Put(t.Context(), key, map[string]string{"k": "v"}, r); err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
}

func keys(t *testing.T, b artifacts.Blobs, prefix string) []string {
	t.Helper()
	out := []string{}
	if err := b.Walk(t.Context(), prefix, func(n artifacts.Blob) error {
		out = append(out, n.Key)
		return nil
	}); err != nil {
		t.Fatalf("Walk: %v", err)
	}
	slices.Sort(out)
	return out
}

func TestInstallationsShareABucket(t *testing.T) {
	t.Parallel()
	cfg := server.Config(newBucket())
	one := open(t, cfg)
	cfg.Installation, cfg.Now = "other", func() time.Time { return time.Now().Add(2 * time.Hour) }
	other := open(t, cfg)
	put(t, one, "p/k", strings.NewReader("one"))
	put(t, other, "p/k", strings.NewReader("other"))
	put(t, other, "p/k2", strings.NewReader("x"))
	if got := keys(t, one, ""); !slices.Equal(got, []string{"p/k"}) {
		t.Errorf("keys of one: got %q", got)
	}
	if err := other.Delete(t.Context(), "p/k"); err != nil {
		t.Fatal(err)
	}
	keys(t, other, "") // reclaims, two hours later
	body, err := one.Open(t.Context(), "p/k", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); err != nil || string(text) != "one" {
		t.Errorf("got %q, %v, want one", text, err)
	}
}

// TestPrefixesOfLongNames: components are cut, which a prefix must not notice.
func TestPrefixesOfLongNames(t *testing.T) {
	t.Parallel()
	b := open(t, server.Config(newBucket()))
	long := "ns/0123456789abcdef-" + strings.Repeat("漢", 130) + strings.Repeat(".x", 20) + "!end"
	other := "ns/0123456789abcdef-" + strings.Repeat("漢", 60)
	put(t, b, long, strings.NewReader("x"))
	put(t, b, other, strings.NewReader("y"))
	for i := range long {
		want := []string{long}
		if strings.HasPrefix(other, long[:i]) {
			want = []string{other, long}
			slices.Sort(want)
		}
		if i%7 != 0 && i < len(long)-50 {
			continue // each is a request
		}
		if i == 0 {
			continue
		}
		if diff := cmp.Diff(want, keys(t, b, long[:i])); diff != "" {
			t.Fatalf("Walk(%q): (-want +got)\n%s", long[:i], diff)
		}
	}
	if _, _, err := b.Put(t.Context(), strings.Repeat("k", 1100), nil, strings.NewReader("")); err == nil {
		t.Error("Put of a key that no object name holds: no error")
	}
}

func TestReclaim(t *testing.T) {
	t.Parallel()
	later := 59 * time.Minute
	cfg := server.Config(newBucket())
	cfg.Now = func() time.Time { return time.Now().Add(later) }
	b := open(t, cfg)
	put(t, b, "p/kept", strings.NewReader("x"))
	core, ctx := raw(t), t.Context()
	// What a process leaves that dies between bytes and description, or between
	// two parts.
	orphan := "test/data/" + strings.Repeat("ab", 32)
	if _, err := core.Client.PutObject(ctx, cfg.Bucket, orphan, strings.NewReader("x"), 1, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		id, err := core.NewMultipartUpload(ctx, cfg.Bucket, orphan, minio.PutObjectOptions{})
		if err == nil {
			_, err = core.PutObjectPart(ctx, cfg.Bucket, orphan, id, 1, strings.NewReader("x"), 1, minio.PutObjectPartOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	keys(t, b, "")
	if got := objects(t, cfg.Bucket, "test/data/"); len(got) != 2 || uploads(t, cfg.Bucket) != 2 {
		t.Fatalf("after 59 minutes: got %q and %d uploads, want all spared", got, uploads(t, cfg.Bucket))
	}
	later = 61 * time.Minute
	keys(t, b, "p/") // not all keys are known: nothing is touched
	if n := uploads(t, cfg.Bucket); n != 2 {
		t.Errorf("Walk of a prefix left %d uploads, want 2", n)
	}
	keys(t, b, "")
	if got := objects(t, cfg.Bucket, "test/data/"); len(got) != 1 || got[0] == orphan || uploads(t, cfg.Bucket) != 0 {
		t.Errorf("after 61 minutes: got %q and %d uploads, want the described one", got, uploads(t, cfg.Bucket))
	}
	if got := keys(t, b, ""); !slices.Equal(got, []string{"p/kept"}) {
		t.Errorf("keys: got %q", got)
	}
}

// TestBrokenUploadLeavesNoParts: a reader that fails after several parts.
func TestBrokenUploadLeavesNoParts(t *testing.T) {
	t.Parallel()
	cfg := server.Config(newBucket())
	b := open(t, cfg)
	fault := errors.New("disk on fire")
	if _, _, err := b.Put(t.Context(), "p/k", nil, &artifactstest.Pattern{N: 20 << 20, Fail: fault}); !errors.Is(err, fault) {
		t.Errorf("Put: got %v, want the reader's error", err)
	}
	if got := objects(t, cfg.Bucket, ""); len(got) != 0 || uploads(t, cfg.Bucket) != 0 {
		t.Errorf("left %q and %d uploads", got, uploads(t, cfg.Bucket))
	}
}

func TestSizeLimit(t *testing.T) {
	t.Parallel()
	cfg := server.Config(newBucket())
	cfg.MaxSize = 9 << 20
	b := open(t, cfg)
	put(t, b, "p/fits", &artifactstest.Pattern{N: 9 << 20})
	if _, _, err := b.Put(t.Context(), "p/k", nil, &artifactstest.Pattern{N: 9<<20 + 1}); !errors.Is(err, artifacts.ErrTooLarge) {
		t.Errorf("Put of a byte too much: got %v, want ErrTooLarge", err)
	}
	if got := keys(t, b, ""); !slices.Equal(got, []string{"p/fits"}) || uploads(t, cfg.Bucket) != 0 {
		t.Errorf("keys: got %q, uploads %d", got, uploads(t, cfg.Bucket))
	}
}

// TestAlteredBytes: somebody, or a disk, changed the object.
func TestAlteredBytes(t *testing.T) {
	t.Parallel()
	cfg := server.Config(newBucket())
	b := open(t, cfg)
	put(t, b, "p/k", strings.NewReader("original"))
	name := objects(t, cfg.Bucket, "test/data/")[0]
	replace := func(text string) {
		t.Helper()
		if _, err := raw(t).Client.PutObject(t.Context(), cfg.Bucket, name, strings.NewReader(text), int64(len(text)), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	replace("0riginal")
	body, err := b.Open(t.Context(), "p/k", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, err := io.ReadAll(body); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("read: got %v, want a wrong checksum", err)
	}
	_ = body.Close()
	replace("short")
	if body, err := b.Open(t.Context(), "p/k", artifacts.Range{}); err == nil {
		_ = body.Close()
		t.Error("Open of bytes of another length: no error")
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	bucket := newBucket()
	open(t, server.Config(bucket))
	for _, tt := range []struct {
		name   string
		change func(*s3.Config)
		want   error
		remedy string
	}{
		{"wrong secret", func(c *s3.Config) { c.SecretKey = "wrong" }, s3.ErrCredentials, s3.EnvSecretKey},
		{"unknown key", func(c *s3.Config) { c.AccessKey = "nobody" }, s3.ErrCredentials, s3.EnvAccessKey},
		{"wrong region", func(c *s3.Config) { c.Region = "mars-1" }, s3.ErrCredentials, s3.EnvRegion},
		{"missing bucket", func(c *s3.Config) { c.Bucket = "nowhere" }, s3.ErrNoBucket, s3.EnvBucket},
		{"nobody there", func(c *s3.Config) { c.Endpoint = "127.0.0.1:1" }, s3.ErrUnreachable, s3.EnvEndpoint},
		{"TLS to a plain server", func(c *s3.Config) { c.UseSSL = true }, s3.ErrUnreachable, s3.EnvEndpoint},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := server.Config(bucket)
			tt.change(&cfg)
			b, err := s3.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			_, _, putErr := b.Put(t.Context(), "p/k", nil, strings.NewReader("x"))
			_, openErr := b.Open(t.Context(), "p/k", artifacts.Range{})
			_, statErr := b.Stat(t.Context(), "p/k")
			for op, err := range map[string]error{
				"Check": b.Check(t.Context()), "Put": putErr, "Open": openErr, "Stat": statErr,
				"Walk":   b.Walk(t.Context(), "", func(artifacts.Blob) error { return nil }),
				"Delete": b.Delete(t.Context(), "p/k"),
			} {
				if !errors.Is(err, tt.want) || !errors.Is(err, artifacts.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), tt.remedy) {
					t.Errorf("%s: got %v, want %v and a remedy naming %s", op, err, tt.want, tt.remedy)
				}
			}
		})
	}
}

// TestServerDies: in the middle of an upload and of a download.
func TestServerDies(t *testing.T) {
	t.Parallel()
	own := s3test.Start(t)
	b := open(t, own.Config("bucket"))
	put(t, b, "p/old", &artifactstest.Pattern{N: 32 << 20})

	body, err := b.Open(t.Context(), "p/old", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, err := io.ReadFull(body, make([]byte, 1024)); err != nil {
		t.Fatalf("read: %v", err)
	}
	r := io.MultiReader(&artifactstest.Pattern{N: 20 << 20, AtEnd: own.Stop}, &artifactstest.Pattern{N: 20 << 20})
	if _, _, err := b.Put(t.Context(), "p/new", nil, r); !errors.Is(err, s3.ErrUnreachable) {
		t.Errorf("Put: got %v, want ErrUnreachable", err)
	}
	if _, err := io.Copy(io.Discard, body); !errors.Is(err, s3.ErrUnreachable) {
		t.Errorf("read on: got %v, want ErrUnreachable", err)
	}
	_ = body.Close()
	if err := b.Check(t.Context()); !errors.Is(err, s3.ErrUnreachable) {
		t.Errorf("Check: got %v, want ErrUnreachable", err)
	}
	if err := own.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("Check of the server that is back: %v", err)
	}
	if got := keys(t, b, ""); !slices.Equal(got, []string{"p/old"}) {
		t.Errorf("keys: got %q, want the old one", got)
	}
	put(t, b, "p/new", strings.NewReader("x"))
}

// TestSilentServer takes connections and says nothing: ctx bounds every call.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	cfg := server.Config("bucket")
	cfg.Endpoint = silent(t)
	b, err := s3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := b.Check(ctx); !errors.Is(err, s3.ErrUnreachable) {
		t.Errorf("Check: got %v, want ErrUnreachable", err)
	}
	if _, err := b.Stat(ctx, "p/k"); !errors.Is(err, artifacts.ErrUnavailable) {
		t.Errorf("Stat: got %v, want ErrUnavailable", err)
	}
}

// get fetches a link as a browser that was told to reach host at the server.
func get(t *testing.T, link string) (*http.Response, string) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.URL.Host = u.Host, server.Endpoint
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestDirectLink(t *testing.T) {
	t.Parallel()
	cfg := server.Config(newBucket())
	cfg.PublicEndpoint = "http://files.example.com:9000"
	b := open(t, cfg)
	put(t, b, "p/k", strings.NewReader("content"))
	link, err := b.DirectLink(t.Context(), "p/k", 15*time.Minute, artifacts.LinkHeaders{
		ContentType: "image/png", Disposition: `inline; filename*=utf-8''%C3%9Cbung.png`,
	})
	if err != nil || !strings.HasPrefix(link, "http://files.example.com:9000/"+cfg.Bucket+"/") {
		t.Fatalf("DirectLink: got %q, %v, want one to the public host", link, err)
	}
	resp, body := get(t, link)
	got := []string{resp.Status, body, resp.Header.Get("Content-Type"), resp.Header.Get("Content-Disposition")}
	want := []string{"200 OK", "content", "image/png", `inline; filename*=utf-8''%C3%9Cbung.png`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if resp, _ := get(t, strings.Replace(link, "image%2Fpng", "text%2Fhtml", 1)); resp.StatusCode != http.StatusForbidden {
		t.Errorf("altered link: got %s, want 403", resp.Status)
	}
	if u, err := url.Parse(link); err != nil || u.Query().Get("X-Amz-Expires") != "900" {
		t.Errorf("link holds for %q s, %v, want 900", u.Query().Get("X-Amz-Expires"), err)
	}

	cfg.PublicEndpoint = ""
	if link, err := open(t, cfg).DirectLink(t.Context(), "p/k", time.Minute, artifacts.LinkHeaders{}); link != "" || err != nil {
		t.Errorf("without a public endpoint: got %q, %v, want none", link, err)
	}
}
