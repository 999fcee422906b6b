package schedulestest_test

import (
	"testing"

	"github.com/helmdeck/helmdeck/pkg/schedules/schedulestest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	schedulestest.Run(t, func(*testing.T) schedulestest.Backend { return schedulestest.NewMemory() })
}
