//go:build !faults

package failpoint

// Enabled reports whether this binary was built with the tag "faults".
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}

// Planted is false in this build.
func Planted(string) bool { return false }
