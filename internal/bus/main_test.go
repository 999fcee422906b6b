package bus_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a server or a connection leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
