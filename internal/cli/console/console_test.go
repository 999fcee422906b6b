package console_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/helmdeck/helmdeck/internal/cli/console"
)

// last ends what a test writes to a terminal.
const last = "THE END"

// terminal opens a pseudo terminal: what is written to tty, up to last, is
// read by shown.
func terminal(t *testing.T) (tty *os.File, shown func() string) {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	if err := unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = tty.Close(), ptm.Close() })
	return tty, func() string {
		var all []byte
		b := make([]byte, 4096)
		for !bytes.Contains(all, []byte(last)) {
			n, err := ptm.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b[:n]...)
		}
		return string(all)
	}
}

func TestTerminal(t *testing.T) {
	for _, tt := range []struct {
		name, noColor, term string
		colour              bool
	}{
		{"a terminal", "", "xterm", true},
		{"NO_COLOR", "1", "xterm", false},
		{"a dumb terminal", "", "dumb", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tt.noColor)
			t.Setenv("TERM", tt.term)
			tty, shown := terminal(t)
			c := console.New(tty, new(bytes.Buffer), tty)
			if !c.Typed() {
				t.Error("a terminal is typed into")
			}
			bar := c.Progress("job")
			bar.Set(50, "half \x1b[31mway")
			bar.Note("%s", c.Red("note"))
			bar.End()
			c.Say(last)
			got := shown()
			for _, want := range []string{"job ████████████░░░░░░░░░░░░  50 % half  [31mway", "note", "\r\x1b[K"} {
				if !strings.Contains(got, want) {
					t.Errorf("got %q, want it to hold %q", got, want)
				}
			}
			if colour := strings.Contains(got, "\x1b[31mnote"); colour != tt.colour {
				t.Errorf("colour: got %v, want %v in %q", colour, tt.colour, got)
			}
		})
	}
}

func TestWithoutTerminal(t *testing.T) {
	t.Parallel()
	var out, talk bytes.Buffer
	c := console.New(strings.NewReader(""), &out, &talk)
	if c.Typed() {
		t.Error("a pipe is not typed into")
	}
	bar := c.Progress("job")
	bar.Set(0, "begins")
	bar.Set(1, "goes on") // within the same second: too much for a log
	bar.Note("%s", c.Red("kept"))
	bar.End()
	if got, want := talk.String(), "job:   0 % begins\nkept\n"; got != want {
		t.Errorf("talk: got %q, want %q", got, want)
	}
	if err := c.Table([]string{"NAME", "N"}, [][]string{{"a\x1b]0;x\x07b", "1"}, {"ä", ""}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Fields("key", "two\nlines", "none", "", "longer", "x"); err != nil {
		t.Fatal(err)
	}
	want := "NAME      N\na ]0;x b  1\nä\nkey     two\n        lines\nlonger  x\n"
	if got := out.String(); got != want {
		t.Errorf("out: got %q, want %q", got, want)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_500_000: "1.5 MB", 2e12: "2.0 TB"} {
		if got := console.Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
