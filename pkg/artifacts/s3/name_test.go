package s3

import (
	"path"
	"strings"
	"testing"
)

// FuzzNames: every key comes back from its name, no component is one that file
// systems treat specially, and a prefix of a key makes a prefix of its name.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"p/0-a b.txt", "p/..", "./..//", "p/" + strings.Repeat("漢", 250), "a!2Fb", "\xff\x00", strings.Repeat(".", 500)} {
		f.Add(s, 3)
	}
	b := &Blobs{cfg: Config{Installation: "i"}}
	f.Fuzz(func(t *testing.T, key string, n int) {
		name, err := b.metaOf(key)
		if err != nil {
			return
		}
		if got, ok := b.keyOf(name); !ok || got != key {
			t.Fatalf("%q came back as %q, %v, from %q", key, got, ok, name)
		}
		if path.Clean(name) != name {
			t.Errorf("name %q is not clean", name)
		}
		for _, c := range strings.Split(name, "/") {
			if len(c) > 255 || strings.HasPrefix(c, ".") {
				t.Errorf("component %q of %d bytes", c, len(c))
			}
		}
		if n >= 0 && n <= len(key) && strings.ToValidUTF8(key, "") == key && strings.ToValidUTF8(key[:n], "") == key[:n] {
			if prefix := b.metaPrefix(key[:n]); !strings.HasPrefix(name, prefix) {
				t.Errorf("prefix %q of %q makes %q, which does not begin %q", key[:n], key, prefix, name)
			}
		}
	})
}
