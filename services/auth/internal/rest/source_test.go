package rest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// behindProxy returns a service that trusts the proxies of a network and a header.
func behindProxy(t testing.TB, header string, burst int) *service {
	t.Helper()
	r := rates("10.9.0.0/16", "2001:db8:9::/48")
	r.Header, r.Burst, r.Inside.Burst = header, burst, burst
	return newServiceWith(t, rest.Options{Policy: open(), Rates: r}, gateways()...)
}

// by sends a request through a proxy with the given lines of a header, and returns the status.
func (s *service) by(t testing.TB, header string, lines ...string) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/ice", nil)
	r.RemoteAddr = "10.9.9.9:4000"
	r.Header[header] = lines
	return s.do(t, r).StatusCode
}

// forms are values of both headers, by the source that they name.
var forms = map[string]struct{ xff, forwarded [][]string }{
	"198.51.100.1": {
		xff: [][]string{
			{"198.51.100.1"}, {" 198.51.100.1 "}, {"198.51.100.1:1234"}, {`"198.51.100.1"`}, {`"198.51.100.1:1234"`},
			{"::ffff:198.51.100.1"}, {"[::ffff:198.51.100.1]:80"},
			{"9.9.9.9, 198.51.100.1"}, {"9.9.9.9,198.51.100.1:1"}, {"9.9.9.9", "198.51.100.1"},
			{"198.51.100.1", "10.9.1.1"}, {"198.51.100.1, 10.9.1.1:9"}, {"198.51.100.1, [2001:db8:9::1]"},
			{"unknown, 198.51.100.1"}, {"_x,\t198.51.100.1"}, {`"9.9.9.9, 198.51.100.1`}, {"198.51.100.1,"},
			{"198.51.100.1, ,"}, {"198.51.100.1", ""}, {"10.9.1.1, 198.51.100.1"},
		},
		forwarded: [][]string{
			{"for=198.51.100.1"}, {"For=198.51.100.1;proto=https;by=10.9.9.9"}, {`for="198.51.100.1:1234"`},
			{`proto=http ; FOR="198.51.100.1:_p"`}, {"for=198.51.100.1:80"}, {`for="[::ffff:198.51.100.1]"`},
			{"for=9.9.9.9, for=198.51.100.1"}, {"for=9.9.9.9", "for=198.51.100.1"}, {`for="9.9.9.9, for=198.51.100.1`},
			{`for=9.9.9.9;secret="a,b\", for=198.51.100.1`},
			{"for=198.51.100.1, for=10.9.1.1"}, {`for=198.51.100.1,for="[2001:db8:9::1]:7";by=_p`},
			{"for=unknown, for=198.51.100.1"}, {"for=198.51.100.1,"}, {"9.9.9.9, for=198.51.100.1"},
			{`for=198.51.100.1;host="a;for=9.9.9.9,b"`},
		},
	},
	"2001:db8:1::/64": {
		xff: [][]string{
			{"2001:db8:1::1"}, {"[2001:db8:1::1]"}, {"[2001:db8:1::2]:1234"}, {`"[2001:db8:1::3]:1234"`},
			{"[2001:db8:1::1%eth0]:1"}, {"2001:db8:1::4%eth0"}, {"2001:DB8:1::A"}, {"x, [2001:db8:1::5], 10.9.0.1"},
		},
		forwarded: [][]string{
			{`for="[2001:db8:1::1]"`}, {`for="[2001:db8:1::2]:1234"`}, {"for=[2001:db8:1::3]"},
			{`for="[2001:db8:1::4%25eth0]"`}, {`for="2001:db8:1::5"`}, {`for="[2001:DB8:1::A]:_x";proto=https`},
		},
	},
	"10.1.2.3": {
		xff:       [][]string{{"10.1.2.3"}, {"10.1.2.3:80"}, {"198.51.100.1, 10.1.2.3"}},
		forwarded: [][]string{{"for=10.1.2.3"}, {`for="10.1.2.3:80"`}, {"for=198.51.100.1, for=10.1.2.3"}},
	},
	"unknown behind 10.9.9.9": {
		xff: [][]string{
			{"unknown"}, {"_hidden"}, {"_a.b-c"}, {"9.9.9.9, unknown"}, {"example.org"}, {"999.1.1.1"},
			{"198.51.100.01"}, {"[2001:db8::1"}, {"198.51.100.1:x"}, {"198.51.100.1:123456"},
			{"198.51.100.0/24"}, {"-"}, {`""`}, {"for=198.51.100.1"}, {"198.51.100.1 198.51.100.2"}, {"\x00"},
			{"2001:db8::1::2"}, {"unix:"}, {"[198.51.100.1]x"},
		},
		forwarded: [][]string{
			{"for=unknown"}, {`for="unknown"`}, {"for=_hidden"}, {`for="_hidden:_port"`},
			{"for=198.51.100.1, for=unknown"}, {"198.51.100.1"}, {"proto=https"}, {"for=198.51.100.1, by=10.9.9.9"},
			{"for=198.51.100.1;for=198.51.100.2"}, {"for="}, {"for"}, {`for=""`}, {"=198.51.100.1"},
			{`for="[2001:db8::1"`}, {"for=198.51.100.1:"}, {"\xff"},
		},
	},
	"unknown behind 10.9.1.1": {
		xff: [][]string{{"unknown, 10.9.1.1"}, {"198.51.100.1, _x, 10.9.1.1:9"}},
		forwarded: [][]string{{
			"for=unknown, for=10.9.1.1",
		}, {`for=198.51.100.1, for="_x";by=10.9.1.1, for="10.9.1.1:9"`}},
	},
	"10.9.9.9": {
		xff:       [][]string{{}, {""}, {" , "}},
		forwarded: [][]string{{}, {""}, {","}},
	},
}

// J-13: all forms of a source share one bucket, for both headers. Each other source has another bucket.
func TestForwardedForms(t *testing.T) {
	for want, tt := range forms {
		for header, all := range map[string][][]string{rest.XForwardedFor: tt.xff, rest.Forwarded: tt.forwarded} {
			s := behindProxy(t, header, len(all))
			for _, lines := range all {
				if code := s.by(t, header, lines...); code != http.StatusOK {
					t.Errorf("%s %q: %d, but %s has asked less often than it may", header, lines, code, want)
				}
			}
			// The bucket is empty now: a refusal shows that the form is counted there.
			for _, lines := range all {
				if code := s.by(t, header, lines...); code != http.StatusTooManyRequests {
					t.Errorf("%s %q: %d: it is not counted for %s", header, lines, code, want)
				}
			}
			for other, forms := range forms {
				if lines := (map[string][][]string{
					rest.XForwardedFor: forms.xff, rest.Forwarded: forms.forwarded,
				})[header][0]; other != want && s.by(t, header, lines...) != http.StatusOK {
					t.Errorf("%s %q of %s is counted for %s", header, lines, other, want)
				}
			}
		}
	}
}

// J-13: the other header is ignored, because a client may have set it.
func TestOtherHeaderIsNotRead(t *testing.T) {
	for header, other := range map[string]string{
		rest.XForwardedFor: rest.Forwarded, rest.Forwarded: rest.XForwardedFor,
	} {
		s := behindProxy(t, header, 1)
		for i, forged := range []string{"for=9.9.9.1", "9.9.9.2", "for=unknown"} {
			r := httptest.NewRequest(http.MethodGet, "/ice", nil)
			r.RemoteAddr = "10.9.9.9:4000"
			r.Header[header], r.Header[other] = []string{
				map[string]string{rest.XForwardedFor: "198.51.100.1", rest.Forwarded: "for=198.51.100.1"}[header],
			}, []string{forged}
			if code := s.do(t, r).StatusCode; (code == http.StatusOK) != (i == 0) {
				t.Errorf("%s, with %s: %q: status %d of request %d", header, other, forged, code, i)
			}
		}
	}
}

// J-13: with any value of the header the request is counted, and entries before the one of the nearest proxy do not
// change the bucket.
func FuzzForwarded(f *testing.F) {
	for _, tt := range forms {
		for _, lines := range tt.xff {
			f.Add(strings.Join(lines, ","), false)
		}
		for _, lines := range tt.forwarded {
			f.Add(strings.Join(lines, ","), true)
		}
	}
	services := map[string]*service{}
	const burst = 2
	for _, header := range []string{rest.XForwardedFor, rest.Forwarded} {
		services[header] = behindProxy(f, header, burst)
	}
	f.Fuzz(func(t *testing.T, text string, rfc bool) {
		header, known := rest.XForwardedFor, "198.51.100.1"
		if rfc {
			header, known = rest.Forwarded, "for=198.51.100.1;proto=https"
		}
		s := services[header]
		s.logs.Reset()
		for range burst {
			s.by(t, header, text)
			s.by(t, header, known)
		}
		for _, lines := range [][]string{{text}, {text + "," + known}, {text, known}} {
			if code := s.by(t, header, lines...); code != http.StatusTooManyRequests {
				t.Errorf("%s %q: status %d after %d requests", header, lines, code, burst)
			}
		}
	})
}
