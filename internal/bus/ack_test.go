package bus

import "testing"

func TestPlainAck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reply string
		seq   uint64
		ok    bool
	}{
		{`{"stream":"EVT", "seq":12}`, 0, false}, // spelt otherwise: the decoder reads it
		{`{"stream":"EVT","seq":12}`, 12, true},
		{`{"stream":"EVT","seq": 12}`, 12, true},
		{`{"stream":"EVT","seq":12,"duplicate":true}`, 0, false},
		{`{"error":{"code":503,"err_code":10077,"description":"x"},"stream":"EVT","seq":0}`, 0, false},
		{`{"stream":"EVT","domain":"d","seq":12}`, 0, false},
		{`{"stream":"EVT","seq":-1}`, 0, false},
		{`{"stream":"E, \"seq\":9","seq":12}`, 0, false},
		{``, 0, false},
	} {
		if seq, ok := plainAck([]byte(tt.reply)); seq != tt.seq || ok != tt.ok {
			t.Errorf("%s: got %d %v, want %d %v", tt.reply, seq, ok, tt.seq, tt.ok)
		}
	}
}
