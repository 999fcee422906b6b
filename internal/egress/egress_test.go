package egress_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/internal/egress"
)

// TestMain points the proxy variables at a dead port: if anything here read
// them, its requests would fail.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"} {
		_ = os.Setenv(name, "http://127.0.0.1:1")
	}
	goleak.VerifyTestMain(m)
}

const deadline = 20 * time.Second // for waits that should take milliseconds

// zone is a resolver whose answers change from look-up to look-up.
type zone struct {
	mu      sync.Mutex
	answers map[string][][]netip.Addr
	asked   map[string]int
}

func (z *zone) LookupNetIP(_ context.Context, network, name string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	rounds, ok := z.answers[name]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: name, Server: "192.0.2.53:53", IsNotFound: true}
	}
	n := z.asked[name]
	z.asked[name]++
	var out []netip.Addr
	for _, addr := range rounds[min(n, len(rounds)-1)] {
		if network == "ip" || network == "ip4" == addr.Unmap().Is4() {
			out = append(out, addr)
		}
	}
	return out, nil
}

// newZone gives the names of testdata/zone.txt and of extra lines in its format.
func newZone(t testing.TB, extra ...string) *zone {
	t.Helper()
	z := &zone{answers: map[string][][]netip.Addr{}, asked: map[string]int{}}
	for _, line := range append(lines(t, "testdata/zone.txt"), extra...) {
		name, answers, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("zone line %q has no colon", line)
		}
		for round := range strings.SplitSeq(answers, "|") {
			var addrs []netip.Addr
			for _, field := range strings.Fields(round) {
				addrs = append(addrs, netip.MustParseAddr(field))
			}
			z.answers[name] = append(z.answers[name], addrs)
		}
	}
	return z
}

var errRecorded = errors.New("recorded, not dialled")

// recorder stands in for the network: it notes every address a guard lets
// through and connects to none, so that a broken guard sends nothing anywhere.
type recorder struct {
	mu      sync.Mutex
	dialled []netip.AddrPort
}

func (r *recorder) Dial(_ context.Context, _, address string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	r.dialled = append(r.dialled, addr)
	return nil, errRecorded
}

func (r *recorder) take() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.dialled
	r.dialled = nil
	return out
}

// loopbackDial really connects, but to this machine alone.
func loopbackDial(ctx context.Context, network, address string) (net.Conn, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	if !addr.Addr().IsLoopback() {
		return nil, errRecorded
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// loopbackGuard allows 127.0.0.1 through the allow list's own syntax.
func loopbackGuard(t testing.TB, extra ...string) *egress.Guard {
	t.Helper()
	allow, err := egress.ParseAllowlist("127.0.0.1/32")
	if err != nil {
		t.Fatal(err)
	}
	return egress.New(egress.Config{
		Policy:   egress.Policy{Allow: allow},
		Resolver: newZone(t, extra...),
		Dial:     loopbackDial,
	})
}

// lines returns the lines of a test file without comments and blank ones.
func lines(t testing.TB, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		if line := strings.TrimSpace(scanner.Text()); line != "" && !strings.HasPrefix(line, "# ") {
			out = append(out, line)
		}
	}
	return out
}

type urlCase struct{ verdict, rule, url string }

func urlCases(t testing.TB) []urlCase {
	t.Helper()
	var out []urlCase
	for _, line := range lines(t, "testdata/urls.txt") {
		verdict, rest, _ := strings.Cut(line, " ")
		rule, url, _ := strings.Cut(strings.TrimSpace(rest), " ")
		url = strings.TrimSpace(url)
		if strings.HasPrefix(url, `"`) {
			unquoted, err := strconv.Unquote(url)
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			url = unquoted
		}
		out = append(out, urlCase{verdict, rule, url})
	}
	return out
}

// wantRefusal checks a refusal's rule, and that its text is fit for a caller.
func wantRefusal(t *testing.T, err error, rule string) {
	t.Helper()
	refusal, ok := errors.AsType[*egress.Refusal](err)
	if !ok {
		t.Fatalf("got error %v, want a refusal by rule %s", err, rule)
	}
	if string(refusal.Rule) != rule {
		t.Errorf("got rule %s (%v), want %s", refusal.Rule, refusal, rule)
	}
	if text := refusal.Error(); !strings.HasPrefix(text, "egress denied: ") || strings.ContainsAny(text, "\r\n\x00") || strings.Contains(text, "secret") {
		t.Errorf("got text %q, want one clean line that starts with egress denied", text)
	}
}
