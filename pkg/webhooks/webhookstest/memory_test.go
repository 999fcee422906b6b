package webhookstest_test

import (
	"testing"

	"github.com/helmdeck/helmdeck/pkg/webhooks/webhookstest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	webhookstest.Run(t, func(*testing.T) webhookstest.Ports {
		m := webhookstest.NewMemory()
		return webhookstest.Ports{Registry: m, Other: m, Queue: m, Log: m}
	})
}
