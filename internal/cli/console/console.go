// Package console is how the command line talks: results on standard output,
// everything else on standard error, colour and a progress bar only where a
// person looks, and no control characters of others on a terminal.
package console

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Console is the standard streams of one command.
type Console struct {
	In       io.Reader
	Out, Err io.Writer
	// JSON asks for results as JSON.
	JSON bool

	inTerminal, errTerminal bool
	colour                  bool // of Err
}

// New looks at the streams. Colour is off without a terminal, with NO_COLOR
// set to anything and on a dumb terminal.
func New(in io.Reader, out, err io.Writer) *Console {
	c := &Console{In: in, Out: out, Err: err, inTerminal: isTerminal(in), errTerminal: isTerminal(err)}
	c.colour = c.errTerminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return c
}

// isTerminal reports whether a stream is a terminal; /dev/null, a character
// device too, is none.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Typed reports whether a person would have to type what is read from In.
func (c *Console) Typed() bool { return c.inTerminal }

// width of the terminal behind Err in characters.
func (c *Console) width() int {
	const usual = 80
	f, ok := c.Err.(*os.File)
	if !ok {
		return usual
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < 20 {
		return usual
	}
	return int(size.Col)
}

// Say writes a line of talk to standard error.
func (c *Console) Say(format string, args ...any) {
	fmt.Fprintf(c.Err, format+"\n", args...)
}

// Print writes a line of a result to standard output.
func (c *Console) Print(format string, args ...any) error {
	_, err := fmt.Fprintf(c.Out, format+"\n", args...)
	return wrote(err)
}

// WriteJSON writes v, indented, to standard output.
func (c *Console) WriteJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = c.Out.Write(append(text, '\n'))
	return wrote(err)
}

// WriteLine writes v as one line of JSON, for streams of results.
func (c *Console) WriteLine(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = c.Out.Write(append(text, '\n'))
	return wrote(err)
}

func wrote(err error) error {
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// Red and its like colour text for Err; they return it unchanged where there
// is no colour.
func (c *Console) Red(s string) string { return c.paint("31", s) }

// Green is for what went well.
func (c *Console) Green(s string) string { return c.paint("32", s) }

// Yellow is for what deserves a look.
func (c *Console) Yellow(s string) string { return c.paint("33", s) }

// Dim is for what may be skipped.
func (c *Console) Dim(s string) string { return c.paint("2", s) }

func (c *Console) paint(code, s string) string {
	if !c.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Clean makes text of others fit for one line: control characters, which a
// terminal would obey, become spaces.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
}

// CleanText is Clean for text of several lines.
func CleanText(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Clean(strings.ReplaceAll(lines[i], "\t", "    "))
	}
	return strings.Join(lines, "\n")
}
