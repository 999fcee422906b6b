// Package catalog is the one table of packs. A new pack adds its line here;
// nothing registers itself.
package catalog

import (
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/artifact"
	"github.com/helmdeck/helmdeck/pkg/packs/browser"
	"github.com/helmdeck/helmdeck/pkg/packs/httpfetch"
	"github.com/helmdeck/helmdeck/pkg/packs/slides"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
)

// Options says which packs to offer beyond those everybody gets.
type Options struct {
	// TestPacks adds the hidden test.* family.
	TestPacks bool
}

// All returns the packs of this build in the order of their families.
func All(o Options) []packs.Pack {
	all := []packs.Pack{
		artifact.Put, artifact.Get, artifact.List,
		browser.ScreenshotURL,
		httpfetch.Pack,
		slides.Render,
	}
	if o.TestPacks {
		all = append(all, testpacks.All...)
	}
	return all
}
