// Command helmdeck-agent is the program inside a sidecar; a runtime starts it,
// people do not. See internal/agent.
package main

import (
	"os"

	"github.com/helmdeck/helmdeck/internal/agent"
)

func main() { os.Exit(agent.Main()) }
