package console

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Table writes rows below a header to standard output, in columns two spaces
// apart. Cells are cleaned. Nothing but the header is written for no rows.
func (c *Console) Table(header []string, rows [][]string) error {
	widths := make([]int, len(header))
	all := append([][]string{header}, rows...)
	for _, row := range all {
		for i := range row {
			row[i] = Clean(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := c.Out.Write([]byte(b.String()))
	return wrote(err)
}

// Fields writes name and value pairs, one a line, to standard output; pairs
// without a value are left out.
func (c *Console) Fields(pairs ...string) error {
	width := 0
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			width = max(width, len(pairs[i]))
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		value := strings.ReplaceAll(CleanText(pairs[i+1]), "\n", "\n"+strings.Repeat(" ", width+2))
		if err := c.Print("%-*s  %s", width, pairs[i], value); err != nil {
			return err
		}
	}
	return nil
}

// Bytes is a size for people: "1.4 MB".
func Bytes(n int64) string {
	const step = 1000
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB"} {
		if f /= step; f < step {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// Time is a time for people, in their zone; empty for none.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// Age is how long ago t was: "42s", "3m", "5h", "2d".
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	switch d := time.Since(t); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
