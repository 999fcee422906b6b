package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// Why the service cannot be used: the Reason of an *Error. Each also is an
// artifacts.ErrUnavailable.
var (
	// ErrUnreachable: nobody answers, or the service fails by itself.
	ErrUnreachable = errors.New("S3 service cannot be reached")
	// ErrCredentials: the service does not accept keys, region or clock.
	ErrCredentials = errors.New("S3 service refuses the keys")
	// ErrDenied: the keys are good and lack a right.
	ErrDenied = errors.New("S3 service denies access")
	// ErrNoBucket: there is no such bucket.
	ErrNoBucket = errors.New("S3 bucket does not exist")
)

// Error is a service that cannot be used, and what an operator does about it.
type Error struct {
	Op     string // what was tried, with its object
	Reason error  // one of the above
	Remedy string
	Err    error // what the service or the network said
}

// Error implements error: operation, reason, cause and remedy.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %v (%v): %s", e.Op, e.Reason, e.Err, e.Remedy)
}

// Unwrap returns reason and cause, and artifacts.ErrUnavailable.
func (e *Error) Unwrap() []error { return []error{e.Reason, e.Err, artifacts.ErrUnavailable} }

// fault puts what the service answered into the words of this package and of
// artifacts. An error that is the end of ctx stays one.
func (b *Blobs) fault(verb, object string, err error) error {
	op := verb + " " + object
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", op, err)
	}
	e := &Error{Op: op, Err: err}
	resp := minio.ToErrorResponse(err)
	switch resp.Code {
	case "NoSuchKey", "NotFound":
		return fmt.Errorf("%s: %w", op, artifacts.ErrNotFound)
	case "NoSuchBucket":
		e.Reason = ErrNoBucket
		e.Remedy = fmt.Sprintf("create the bucket %s, give the key the right to create it, or correct %s", b.cfg.Bucket, EnvBucket)
		return e
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidTokenId", "InvalidSecurity":
		e.Reason, e.Remedy = ErrCredentials, fmt.Sprintf("check %s and %s", EnvAccessKey, EnvSecretKey)
		return e
	case "AuthorizationHeaderMalformed", "InvalidRegion", "AuthorizationQueryParametersError":
		e.Reason, e.Remedy = ErrCredentials, fmt.Sprintf("check %s, which is %s", EnvRegion, b.cfg.Region)
		return e
	case "RequestTimeTooSkewed":
		e.Reason, e.Remedy = ErrCredentials, "set the clocks of this machine and of the S3 service: they differ too much"
		return e
	case "AccessDenied", "AllAccessDisabled", "AccountProblem":
		e.Reason = ErrDenied
		e.Remedy = fmt.Sprintf("give the key the rights to list, read, write and delete objects of %s and to list and abort multipart uploads", b.cfg.Bucket)
		return e
	case "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage":
		return fmt.Errorf("%s: %w: %w", op, artifacts.ErrNoSpace, err)
	}
	if resp.StatusCode == http.StatusInsufficientStorage {
		return fmt.Errorf("%s: %w: %w", op, artifacts.ErrNoSpace, err)
	}
	e.Reason = ErrUnreachable
	e.Remedy = fmt.Sprintf("see that the service at %s (%s) runs and can be reached from this machine", b.cfg.Endpoint, EnvEndpoint)
	return e
}
