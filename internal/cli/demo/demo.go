// Package demo holds the deck that helmdeck demo renders.
package demo

import _ "embed"

// Deck is a Marp deck that shows how a job flows.
//
//go:embed deck.md
var Deck string
