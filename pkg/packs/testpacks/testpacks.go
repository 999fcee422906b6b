// Package testpacks is the hidden test.* family: packs that succeed, wait,
// fail, crash and answer at length, so that the job system around them can be
// tested. They exist with HELMDECK_TEST_PACKS=1 only.
package testpacks

import "github.com/helmdeck/helmdeck/pkg/packs"

// All lists the family.
var All = append([]packs.Pack{Echo, Sleep, Fail, Crash, BigOutput, Effect, Artifact, Parent}, later...)
