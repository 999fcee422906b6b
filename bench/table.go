package main

import (
	"fmt"
	"strings"
)

// table is what the systems reached at one durability.
type table struct {
	title   string
	columns []string // the first is helmdeck
	rows    []string // in the order of the first column that has them
	values  map[string]map[string]float64
}

func (t *table) put(column string, f figure) {
	if t.values[f.Name] == nil {
		t.values[f.Name] = map[string]float64{}
		t.rows = append(t.rows, f.Name)
	}
	t.values[f.Name][column] = f.Value
}

// rawColumn is no peer: it is what helmdeck stands on.
const rawColumn = "raw bus"

func (t *table) print() {
	fmt.Printf("%s\n%-42s", t.title, "")
	for _, c := range append(t.columns, rawColumn, "to peers", "to raw") {
		fmt.Printf(" %10s", c)
	}
	fmt.Println()
	for _, row := range t.rows {
		fmt.Printf("%-42s", row)
		for _, c := range append(t.columns, rawColumn) {
			v, ok := t.values[row][c]
			switch {
			case !ok:
				fmt.Printf(" %10s", "-")
			case v < 100:
				fmt.Printf(" %10.2f", v)
			default:
				fmt.Printf(" %10.0f", v)
			}
		}
		fmt.Printf(" %10s %10s\n", t.ratio(row, t.columns[1:]...), t.ratio(row, rawColumn))
	}
	fmt.Println()
}

// ratio compares the first column with the best of others. Of times the least
// is the best.
func (t *table) ratio(row string, others ...string) string {
	ours := t.values[row][t.columns[0]]
	times := strings.Contains(row, " ms ")
	best := 0.0
	for _, c := range others {
		v, known := t.values[row][c]
		if known && (best == 0 || times && v < best || !times && v > best) {
			best = v
		}
	}
	switch {
	case best == 0 || ours == 0:
		return "-"
	case times:
		return fmt.Sprintf("%.2f", best/ours)
	}
	return fmt.Sprintf("%.2f", ours/best)
}
