package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestContractEndpoints(t *testing.T) {
	for text, want := range map[string]struct {
		prefix      string
		first, last uint16
		short       string
	}{
		"1.2.3.4/16:<1-2>":          {"1.2.0.0/16", 1, 2, "1.2.0.0/16:<1-2>"},
		"1.2.3.4":                   {"1.2.3.4/32", 1, 65535, "1.2.3.4"},
		"1.2.3.4/32":                {"1.2.3.4/32", 1, 65535, "1.2.3.4"},
		"1.2.3.4:<7-7>":             {"1.2.3.4/32", 7, 7, "1.2.3.4:<7-7>"},
		"1.2.3.4:<1-65535>":         {"1.2.3.4/32", 1, 65535, "1.2.3.4"},
		"0.0.0.0/0":                 {"0.0.0.0/0", 1, 65535, "0.0.0.0/0"},
		"2001:db8::1":               {"2001:db8::1/128", 1, 65535, "2001:db8::1"},
		"2001:db8::1:<5-6>":         {"2001:db8::1/128", 5, 6, "2001:db8::1:<5-6>"},
		"2001:DB8::1/32:<5-6>":      {"2001:db8::/32", 5, 6, "2001:db8::/32:<5-6>"},
		"::/0":                      {"::/0", 1, 65535, "::/0"},
		"::ffff:10.0.0.1":           {"10.0.0.1/32", 1, 65535, "10.0.0.1"},
		"::ffff:10.1.0.0/112:<1-2>": {"10.1.0.0/16", 1, 2, "10.1.0.0/16:<1-2>"},
	} {
		t.Run(text, func(t *testing.T) {
			e, err := config.ParseEndpoint(text)
			if err != nil {
				t.Fatal(err)
			}
			if e.Prefix != netip.MustParsePrefix(want.prefix) || e.Ports.First != want.first ||
				e.Ports.Last != want.last {
				t.Errorf("read as %v", e)
			}
			if e.String() != want.short {
				t.Errorf("printed as %s, want %s", e, want.short)
			}
		})
	}
}

func TestContractBadEndpoints(t *testing.T) {
	for text, problem := range map[string]string{
		"":                    "no IP address",
		":<1-65535>":          "no IP address",
		"1.2.3.4:5":           "no IP address",
		"1.2.3.0/33":          `prefix length "33" is out of range: use 0 to 32`,
		"10.0.0.0/33":         `prefix length "33" is out of range: use 0 to 32`,
		"::/129":              `prefix length "129" is out of range: use 0 to 128`,
		"10.0.0.0/-1":         "out of range",
		"10.0.0.0/":           "out of range",
		"10.0.0.0/8/8":        "out of range",
		"host:<1-2>":          "no IP address",
		"[2001:db8::1]:<1-2>": "no IP address",
		"fe80::1%eth0":        "no IP address",
		" 1.2.3.4":            "no IP address",
		"01.2.3.4":            "no IP address",
		"::ffff:10.0.0.0/95":  "IPv4-mapped",
		"1.2.3.4:<20-10>":     "upside down: write <10-20>",
		"1.2.3.4:<0-10>":      "out of range: use ports 1 to 65535",
		"1.2.3.4:<1-65536>":   "out of range",
		"1.2.3.4:<+1-2>":      "out of range",
		"1.2.3.4:<1-2-3>":     "out of range",
		"1.2.3.4:<->":         "out of range",
		"1.2.3.4:<5>":         "unreadable port range: write :<FIRST-LAST>",
		"1.2.3.4:<1-2":        "unreadable port range",
		"1.2.3.4:<1-2> ":      "unreadable port range",
		"1.2.3.4:<1-2>:<3-4>": "no IP address",
		"1.2.3.4:1-2":         "no IP address",
		"1.2.3.4\x00":         "no IP address",
	} {
		t.Run(text, func(t *testing.T) {
			e, err := config.ParseEndpoint(text)
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("read as %v, error %v, want %q", e, err, problem)
			}
		})
	}
}

func TestPortRangeContains(t *testing.T) {
	r := config.PortRange{First: 10, Last: 12}
	for port, want := range map[uint16]bool{0: false, 9: false, 10: true, 11: true, 12: true, 13: false, 65535: false} {
		if r.Contains(port) != want {
			t.Errorf("%d is in %v: %v", port, r, !want)
		}
	}
	if (config.PortRange{}).Contains(1) || !config.AllPorts.Contains(1) || !config.AllPorts.Contains(65535) ||
		config.AllPorts.Contains(0) {
		t.Error("bounds of no ports and of all ports")
	}
}

// A parsed endpoint can be printed and parsed again.
func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{
		"1.2.3.4/16:<1-2>", "1.2.3.4", "2001:db8::1:<5-6>", "::/0", "::ffff:1.2.3.4/97", "::ffff:1.2.3.4/95",
		"10.0.0.0/33", ":<1-2>",
		"1.2.3.4:<20-10>", "1.2.3.4:<0-1>", "1.2.3.4:<00001-2>", "fe80::1%a:<1-2>", "1.2.3.4/08",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := config.ParseEndpoint(text)
		if err != nil {
			return
		}
		if !e.Prefix.IsValid() || e.Prefix != e.Prefix.Masked() || e.Prefix.Addr().Is4In6() || e.Ports.First == 0 ||
			e.Ports.First > e.Ports.Last {
			t.Errorf("%q is read as %+v", text, e)
		}
		if again, err := config.ParseEndpoint(e.String()); err != nil || again != e {
			t.Errorf("%q is printed as %q, which reads as %v: %v", text, e, again, err)
		}
	})
}

func TestAPrefixIsAnEndpointWithoutPorts(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "2001:db8::1": "2001:db8::1/128",
		"::ffff:10.0.0.1": "10.0.0.1/32",
	} {
		if got, err := config.ParsePrefix(text); err != nil || got.String() != want {
			t.Errorf("%s is read as %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "office", "10.0.0.0/33", "10.0.0.1:<1-65535>", "10.0.0.1:<>", "10.0.0.1<", "10.0.0.1:80",
	} {
		if got, err := config.ParsePrefix(text); err == nil {
			t.Errorf("%s is read as %s", text, got)
		}
	}
}

// T-A16: valid ranges of relay ports are parsed, and others refused.
func TestRelayPorts(t *testing.T) {
	for text, n := range map[string]int{"40000-49999": 10_000, "1024-65535": 64_512, "5000-5000": 1} {
		r, err := config.ParseRelayPorts(text)
		if err != nil || r.Len() != n || r.String() != text {
			t.Errorf("%s: %v with %d ports, %v", text, r, r.Len(), err)
		}
	}
	for text, want := range map[string]string{
		"": "write MIN-MAX", "40000": "write MIN-MAX", "0-5000": "write MIN-MAX", "40000-65536": "write MIN-MAX",
		"a-b": "write MIN-MAX", "-1-5000": "write MIN-MAX",
		"5000-6000-7000": "write MIN-MAX", "50000-40000": "write 40000-50000", "1023-2000": "use ports 1024 to 65535",
	} {
		if _, err := config.ParseRelayPorts(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if n := (config.PortRange{}).Len(); n != 0 {
		t.Errorf("the zero range has %d ports", n)
	}
}
