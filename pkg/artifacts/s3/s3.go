// Package s3 keeps the bytes of artifacts in a bucket of an S3 service: AWS,
// MinIO, Garage, Versity and what else speaks the protocol. It implements
// artifacts.Blobs; the metadata of visible artifacts stays in the bus.
//
// Two objects make a blob, both under the name of the installation, so that
// several may share a bucket:
//
//	<installation>/data/<SHA-256 of the key>   the bytes, as one object
//	<installation>/meta/<key, escaped>!        their description, as JSON
//
// The description is written last and removed first: without it there is no
// blob, whatever a crash left of the bytes. It holds the checksum, which is
// known only after the last byte of a stream and can therefore not be metadata
// of the bytes' own object without copying them. Names of bytes follow from the
// key, so that a link is signed without asking the service.
//
// Nothing but the plain protocol is used: single and multipart uploads, ranged
// reads, listings. No conditional writes, tags, versions or life-cycle rules.
package s3

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// DefaultRegion is signed when none is configured.
const DefaultRegion = "us-east-1"

// DefaultMaxSize is the largest blob: five times the largest upload.
const DefaultMaxSize = 25 << 30

// Config says which bucket, and how to get in.
type Config struct {
	// Endpoint is HOST:PORT or a URL, whose scheme decides on TLS.
	Endpoint string
	// UseSSL asks for TLS when Endpoint has no scheme.
	UseSSL bool
	Bucket string
	// AccessKey and SecretKey need the rights to list, read, write and delete
	// objects, and to list and abort multipart uploads; to create the bucket
	// only when it does not exist.
	AccessKey, SecretKey string
	Region               string // empty: DefaultRegion
	// PublicEndpoint is where callers reach the service, HOST:PORT or a URL.
	// Links are signed for that host. Empty: no links are signed.
	PublicEndpoint string
	// Installation is the folder of the bucket to use: letters, digits, "-".
	Installation string
	// MaxSize bounds a blob in bytes; 0: DefaultMaxSize.
	MaxSize int64
	// Now is the clock by which abandoned uploads age; nil: time.Now.
	Now func() time.Time
}

// The bounds of one request. A transfer as a whole has none but its ctx.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = time.Minute
	// stallTimeout ends a download of which no byte comes.
	stallTimeout = time.Minute
	// partTimeout bounds one part of an upload: 27 KiB/s.
	partTimeout = 5 * time.Minute
	// smallTimeout bounds what moves no content.
	smallTimeout = 30 * time.Second
	// tries of one request, with a pause of a fraction of a second between.
	tries = 3
)

var (
	bucketForm       = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	installationForm = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
)

func (c Config) withDefaults() Config {
	c.Region = cmp.Or(c.Region, DefaultRegion)
	c.MaxSize = cmp.Or(c.MaxSize, DefaultMaxSize)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports everything that is wrong with the configuration, by the
// names of the variables it comes from.
func (c Config) Validate() error {
	var faults []error
	for _, f := range []struct{ name, value string }{
		{EnvEndpoint, c.Endpoint}, {EnvBucket, c.Bucket}, {EnvAccessKey, c.AccessKey}, {EnvSecretKey, c.SecretKey},
	} {
		if f.value == "" {
			faults = append(faults, fmt.Errorf("%s is not set; artifacts on S3 need %s, %s, %s and %s (each also as a file, with _FILE)",
				f.name, EnvEndpoint, EnvBucket, EnvAccessKey, EnvSecretKey))
		}
	}
	if c.Bucket != "" && !bucketForm.MatchString(c.Bucket) {
		faults = append(faults, fmt.Errorf("%s: %q is no bucket name (3 to 63 lower-case letters, digits, dots and hyphens)", EnvBucket, c.Bucket))
	}
	for _, f := range []struct{ name, value string }{{EnvEndpoint, c.Endpoint}, {EnvPublicEndpoint, c.PublicEndpoint}} {
		if f.value == "" {
			continue
		}
		if _, _, err := splitEndpoint(f.value, c.UseSSL); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", f.name, err))
		}
	}
	return errors.Join(faults...)
}

// splitEndpoint is the host of an endpoint and whether to speak TLS to it.
func splitEndpoint(endpoint string, ssl bool) (host string, secure bool, err error) {
	raw := endpoint
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	} else {
		ssl = strings.HasPrefix(raw, "https://")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", false, fmt.Errorf("%q is not an endpoint; give HOST:PORT, http://HOST:PORT or https://HOST", endpoint)
	}
	return u.Host, ssl, nil
}

// Blobs implements artifacts.Blobs on a bucket. It is safe for concurrent use
// and holds nothing to close.
type Blobs struct {
	cfg  Config
	core minio.Core
	// public signs links; nil without a public endpoint.
	public *minio.Client
}

// New returns the blobs of a bucket. It does not speak to the service: Ensure
// does, and every call.
func New(cfg Config) (*Blobs, error) {
	cfg = cfg.withDefaults()
	err := cfg.Validate()
	if !installationForm.MatchString(cfg.Installation) {
		err = errors.Join(err, fmt.Errorf("installation %q is no name of a folder", cfg.Installation))
	}
	if err != nil {
		return nil, fmt.Errorf("configure S3: %w", err)
	}
	client, err := dial(cfg, cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("configure S3: %w", err)
	}
	b := &Blobs{cfg: cfg, core: minio.Core{Client: client}}
	if cfg.PublicEndpoint != "" {
		if b.public, err = dial(cfg, cfg.PublicEndpoint); err != nil {
			return nil, fmt.Errorf("configure S3: %w", err)
		}
	}
	return b, nil
}

// dial makes a client; nothing is sent.
func dial(cfg Config, endpoint string) (*minio.Client, error) {
	host, secure, err := splitEndpoint(endpoint, cfg.UseSSL)
	if err != nil {
		return nil, err
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, err
	}
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.ResponseHeaderTimeout = answerTimeout
	transport.MaxIdleConnsPerHost = 64
	return minio.New(host, &minio.Options{
		Creds:  credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""),
		Secure: secure, Region: cfg.Region, Transport: transport, MaxRetries: tries,
	})
}

// Ensure checks that the bucket can be used, and creates it when it does not
// exist and the service lets us. The error is an *Error that names the remedy.
func (b *Blobs) Ensure(ctx context.Context) error {
	err := b.Check(ctx)
	if !errors.Is(err, ErrNoBucket) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	err = b.core.MakeBucket(ctx, b.cfg.Bucket, minio.MakeBucketOptions{Region: b.cfg.Region})
	switch code := minio.ToErrorResponse(err).Code; {
	case err == nil, code == "BucketAlreadyOwnedByYou", code == "BucketAlreadyExists":
		// Another process was first; or the name is somebody else's, as Check tells.
		return b.Check(ctx)
	case code == "AccessDenied":
		return b.fault("create bucket", b.cfg.Bucket, minio.ErrorResponse{Code: "NoSuchBucket", Message: err.Error()})
	}
	return b.fault("create bucket", b.cfg.Bucket, err)
}

// Check asks the service for a listing, which needs everything right: address,
// keys, clock, bucket and rights. The error is an *Error.
func (b *Blobs) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	for o := range b.core.ListObjectsIter(ctx, b.cfg.Bucket, minio.ListObjectsOptions{
		Prefix: b.cfg.Installation + "/", Recursive: true, MaxKeys: 1,
	}) {
		if o.Err != nil {
			return b.fault("list bucket", b.cfg.Bucket, o.Err)
		}
		break
	}
	return nil
}

// String names endpoint and bucket, for logs and reports.
func (b *Blobs) String() string { return b.cfg.Endpoint + "/" + b.cfg.Bucket }
