package artifactstest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
)

// Pattern yields N bytes that differ from place to place, and remembers how
// they were asked for. If Fail is set it comes in place of the end; AtEnd runs
// once before that.
type Pattern struct {
	N       int64
	Fail    error
	AtEnd   func()
	Largest int // the largest piece asked for, bytes
	off     int64
}

// Read implements io.Reader.
func (p *Pattern) Read(b []byte) (int, error) {
	p.Largest = max(p.Largest, len(b))
	if p.off == p.N {
		if p.AtEnd != nil {
			p.AtEnd()
			p.AtEnd = nil
		}
		if p.Fail != nil {
			return 0, p.Fail
		}
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.N-p.off)
	for i := range b[:n] {
		at := p.off + int64(i)
		b[i] = byte(at ^ at>>8 ^ at>>16)
	}
	p.off += n
	return int(n), nil
}

func sumOf(r io.Reader) string {
	sum := sha256.New()
	io.Copy(sum, r) // of readers that cannot fail
	return hex.EncodeToString(sum.Sum(nil))
}
