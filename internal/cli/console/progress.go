package console

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Progress shows how far something has come: one line that is redrawn on a
// terminal, a line for each change of note elsewhere. It is not safe for
// concurrent use.
type Progress struct {
	c       *Console
	label   string
	percent float64
	text    string
	drawn   bool // a bar stands on the last line
	// told is the last line without a terminal, with its percent and time.
	told    string
	toldAt  float64
	toldNow time.Time
}

// Progress begins a bar with a label.
func (c *Console) Progress(label string) *Progress {
	return &Progress{c: c, label: Clean(label), toldAt: -100}
}

const (
	barWidth = 24
	// tellEvery is the step in percent that is worth a line without a terminal,
	// tellPause the time in which no more than one is written.
	tellEvery = 25
	tellPause = time.Second
)

// Set shows a new state. An empty text keeps the last one.
func (p *Progress) Set(percent float64, text string) {
	p.percent = min(max(percent, 0), 100)
	if text = Clean(text); text != "" {
		p.text = text
	}
	if p.c.errTerminal {
		p.draw()
		return
	}
	if p.text == p.told && p.percent < p.toldAt+tellEvery || time.Since(p.toldNow) < tellPause {
		return
	}
	p.told, p.toldAt, p.toldNow = p.text, p.percent, time.Now()
	p.c.Say("%s: %3.0f %% %s", p.label, p.percent, p.text)
}

// Note writes a line that stays, above the bar.
func (p *Progress) Note(format string, args ...any) {
	p.wipe()
	p.c.Say(format, args...)
	if p.c.errTerminal && p.text != "" {
		p.draw()
	}
}

// End removes the bar.
func (p *Progress) End() {
	p.wipe()
	p.text = ""
}

func (p *Progress) wipe() {
	if p.drawn {
		fmt.Fprint(p.c.Err, "\r\x1b[K")
		p.drawn = false
	}
}

func (p *Progress) draw() {
	full := int(p.percent * barWidth / 100)
	bar := strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	line := fmt.Sprintf("%s %s %3.0f %% %s", p.label, bar, p.percent, p.text)
	if most := p.c.width() - 1; utf8.RuneCountInString(line) > most {
		line = string([]rune(line)[:most-1]) + "…"
	}
	fmt.Fprint(p.c.Err, "\r\x1b[K", line)
	p.drawn = true
}
