package console

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNobody: there is no terminal at which somebody could be asked.
var ErrNobody = errors.New("standard input is no terminal")

// Confirm asks a question on a terminal and reports whether the answer was
// yes; an empty answer is no. Without a terminal it is ErrNobody.
func (c *Console) Confirm(format string, args ...any) (bool, error) {
	if !c.inTerminal {
		return false, ErrNobody
	}
	fmt.Fprintf(c.Err, format+" [y/N] ", args...)
	answer, err := bufio.NewReader(c.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}
