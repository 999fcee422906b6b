//go:build !future

package testpacks

import "github.com/helmdeck/helmdeck/pkg/packs"

// later are the packs of programs built with the tag "future", which stand for
// a later version in the upgrade tests.
var later []packs.Pack
