package artifacts_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

func TestCleanName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("漢", 300)
	for _, tt := range []struct{ in, clean, base string }{
		{"deck.pdf", "deck.pdf", "deck.pdf"},
		{"../../etc/p", "etc/p", "p"}, // extras.md, acceptance 5
		{"/etc/passwd", "etc/passwd", "passwd"},
		{"a/../b", "a/b", "b"},
		{"....//x", "..../x", "x"},
		{`C:\Users\me\Übung 1.docx`, "C:/Users/me/Übung 1.docx", "Übung 1.docx"},
		{"", "upload", "upload"},
		{" \t\r\n", "upload", "upload"},
		{"/", "upload", "upload"},
		{"..", "upload", "upload"},
		{"../", "upload", "upload"},
		{"a\x00b\r\nc\x7f.txt", "abc.txt", "abc.txt"},
		{"..\x00/x", "x", "x"},
		{"bad\xffutf8", "badutf8", "badutf8"},
		{"invoice\u202efdp.exe", "invoicefdp.exe", "invoicefdp.exe"},
		{"👩‍👩‍👧.png", "👩‍👩‍👧.png", "👩‍👩‍👧.png"},
		{".gitignore", ".gitignore", ".gitignore"},
		{long + ".tar", strings.Repeat("漢", 196) + ".tar", strings.Repeat("漢", 196) + ".tar"},
		{"d/" + long, strings.Repeat("漢", 200), strings.Repeat("漢", 200)},
		{"x." + long, "x." + strings.Repeat("漢", 198), "x." + strings.Repeat("漢", 198)},
	} {
		if got := artifacts.CleanName(tt.in); got != tt.clean {
			t.Errorf("CleanName(%q): got %q, want %q", tt.in, got, tt.clean)
		}
		if got := artifacts.BaseName(tt.in); got != tt.base {
			t.Errorf("BaseName(%q): got %q, want %q", tt.in, got, tt.base)
		}
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"", "a/b", "../../etc/p", "..\x00/", " . / .. ", strings.Repeat("x", 300) + ".y", "\u202e.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := artifacts.CleanName(in)
		if again := artifacts.CleanName(got); again != got {
			t.Errorf("cleaned again, %q became %q", got, again)
		}
		for part := range strings.SplitSeq(got, "/") {
			if part == "" || part == "." || part == ".." {
				t.Errorf("%q has the part %q", got, part)
			}
		}
		if n := utf8.RuneCountInString(got); n > 200 || n == 0 || !utf8.ValidString(got) {
			t.Errorf("%q has %d characters", got, n)
		}
		if strings.ContainsFunc(got, unicode.IsControl) || strings.Contains(got, `\`) {
			t.Errorf("%q holds what it must not", got)
		}
		if base := artifacts.BaseName(in); strings.Contains(base, "/") || artifacts.CleanName(base) != base {
			t.Errorf("base name %q", base)
		}
	})
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	png := "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	for _, tt := range []struct{ declared, name, content, want string }{
		{"text/markdown", "x.png", png, "text/markdown"},
		{"text/plain; charset=iso-8859-1", "x", "", "text/plain; charset=iso-8859-1"},
		{"Application/JSON", "x", "", "application/json"},
		{"image/png\r\nX-Evil: 1", "x", "<html>", "text/html; charset=utf-8"},
		{"nonsense", "a.md", "", "text/markdown"},
		{"", "DECK.PDF", "", "application/pdf"},
		{"", "deck.pptx", "", "application/vnd.openxmlformats-officedocument.presentationml.presentation"},
		{"", "picture", png, "image/png"},
		{"", "x.unknown-extension", strings.Repeat("a", 2000), "text/plain; charset=utf-8"},
		{"", "x", "\x00\x01\x02", "application/octet-stream"},
		{"", "x", "", "text/plain; charset=utf-8"},
	} {
		d := draft()
		d.ContentType, d.Name = tt.declared, tt.name
		ref := put(t, b, d, tt.content)
		if ref.ContentType != tt.want {
			t.Errorf("declared %q, name %q: got %q, want %q", tt.declared, tt.name, ref.ContentType, tt.want)
		}
		publish(t, b, ref)
		wantContent(t, b, ref.Key, tt.content)
	}
}

func TestDisposition(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ contentType, name, kind, header string }{
		{"image/png", "shot.png", "inline", `inline; filename=shot.png`},
		{"image/JPEG; q=1", "a b.jpg", "inline", `inline; filename="a b.jpg"`},
		{"image/gif", "x", "inline", `inline; filename=x`},
		{"image/webp", "x", "inline", `inline; filename=x`},
		{"image/svg+xml", "x.svg", "attachment", `attachment; filename=x.svg`},
		{"text/html", "etc/p", "attachment", `attachment; filename=p`},
		{"application/pdf", "Übung.pdf", "attachment", `attachment; filename*=utf-8''%C3%9Cbung.pdf`},
		{"", `a"b`, "attachment", `attachment; filename="a\"b"`},
	} {
		if got := artifacts.Disposition(tt.contentType); got != tt.kind {
			t.Errorf("Disposition(%q): got %q, want %q", tt.contentType, got, tt.kind)
		}
		ref := artifacts.Ref{Name: tt.name, ContentType: tt.contentType}
		if got := ref.Disposition(); got != tt.header {
			t.Errorf("%q: got %s, want %s", tt.name, got, tt.header)
		}
	}
}
