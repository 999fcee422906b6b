package packs

// Run is what a handler works with: the identity of the attempt and what the
// pack declared it needs.
type Run struct{}
