package wire_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	type frame struct {
		Kind    wire.Kind
		Payload string
	}
	want := []frame{{wire.Command, `{"argv":["true"]}`}, {wire.Alive, ""}, {wire.Stdout, "a\x00b"}, {wire.Exited, "{}"}}
	var buf bytes.Buffer
	for _, f := range want {
		if err := wire.WriteFrame(&buf, f.Kind, []byte(f.Payload)); err != nil {
			t.Fatal(err)
		}
	}
	var got []frame
	for {
		k, p, err := wire.ReadFrame(&buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, frame{k, string(p)})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
}

func TestFrameTooLong(t *testing.T) {
	t.Parallel()
	if err := wire.WriteFrame(io.Discard, wire.Stdout, make([]byte, wire.MaxFrame+1)); !errors.Is(err, wire.ErrFrame) {
		t.Errorf("got %v, want ErrFrame", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("O\x00\x00\x00\x02hi"))
	f.Add([]byte("O\xff\xff\xff\xff"))
	f.Add([]byte("O\x00\x00"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		k, p, err := wire.ReadFrame(bytes.NewReader(data))
		switch {
		case err == nil:
			var again bytes.Buffer
			if err := wire.WriteFrame(&again, k, p); err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(data, again.Bytes()) {
				t.Errorf("frame %q does not begin %q", again.Bytes(), data)
			}
		case errors.Is(err, io.EOF) != (len(data) == 0):
			t.Errorf("%d bytes: got %v", len(data), err)
		}
	})
}
