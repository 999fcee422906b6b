//go:build !future

package jobstore

import "github.com/helmdeck/helmdeck/pkg/jobs"

// future is the identity but in programs built with the tag "future", which
// stand for a later version in the upgrade tests.
func future(j jobs.Job) jobs.Job { return j }
