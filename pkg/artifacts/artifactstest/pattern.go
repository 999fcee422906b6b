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
	b = b[:min(int64(len(b)), p.N-p.off)]
	n := copy(b, block[p.off%int64(len(block)):])
	p.off += int64(n)
	return n, nil
}

// block repeats in a Pattern. Its length is prime, so that no two chunks are
// alike.
var block = func() []byte {
	b := make([]byte, 65_521)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}()

func sumOf(r io.Reader) string {
	sum := sha256.New()
	_, _ = io.Copy(sum, r) // of readers that cannot fail
	return hex.EncodeToString(sum.Sum(nil))
}
