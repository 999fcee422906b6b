package main

import (
	"bytes"
	"os"
	"testing"
)

// TestPeersAreMeasuredAlike: bench/peers is a module of its own and cannot
// import what measures.
func TestPeersAreMeasuredAlike(t *testing.T) {
	t.Parallel()
	ours, err := os.ReadFile("measure.go")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("peers/measure.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Error("bench/measure.go and bench/peers/measure.go differ: copy the one over the other")
	}
}

func TestRatioIsToTheBestPeer(t *testing.T) {
	t.Parallel()
	tab := table{columns: []string{"helmdeck", "a", "b"}, values: map[string]map[string]float64{}}
	for column, v := range map[string]float64{"helmdeck": 200, "a": 50, "b": 100} {
		tab.put(column, figure{"jobs/s", v})
		tab.put(column, figure{"call ms p50", v})
	}
	tab.put("helmdeck", figure{"lonely", 1})
	for row, want := range map[string]string{"jobs/s": "2.00", "call ms p50": "0.25", "lonely": "-"} {
		if got := tab.ratio(row, "a", "b"); got != want {
			t.Errorf("%s: got %s, want %s", row, got, want)
		}
	}
}
