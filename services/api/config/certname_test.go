package config_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// signed returns a self-signed certificate in DER.
func signed(t *testing.T, template x509.Certificate) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(1)
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// The names of a certificate are the names that clients compare with the host of a URL: of the first certificate of a
// chain, and not its subject.
func TestCertificateNames(t *testing.T) {
	both := signed(t, x509.Certificate{
		Subject: pkix.Name{CommonName: "subject.example.com"}, DNSNames: []string{"turn.example.com", "203.0.113.9"},
		IPAddresses: []net.IP{net.ParseIP("203.0.113.7"), net.ParseIP("2001:db8:0:0::7")},
	})
	subject := signed(t, x509.Certificate{Subject: pkix.Name{CommonName: "subject.example.com"}})
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"names and addresses": {inPEM("CERTIFICATE", both), []string{"turn.example.com", "203.0.113.7", "2001:db8::7"}},
		"a chain": {
			inPEM("CERTIFICATE", subject) + inPEM("CERTIFICATE", both), nil,
		},
		"after other blocks": {
			inPEM("EC PARAMETERS", nil) + inPEM("CERTIFICATE", both), []string{"turn.example.com", "203.0.113.7", "2001:db8::7"},
		},
		"a subject only": {inPEM("CERTIFICATE", subject), nil},
		"no PEM":         {"turn.example.com", nil},
		"no certificate": {inPEM("CERTIFICATE", []byte("turn.example.com")), nil},
		"nothing":        {"", nil},
	} {
		got := config.Certificate{Cert: base64.StdEncoding.EncodeToString([]byte(c.text))}.Names()
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (config.Certificate{Cert: "$STUNNER_CERT"}).Names(); got != nil {
		t.Errorf("placeholder: %q", got)
	}
}

// A certificate with very many names does not take more memory than its text.
func TestCertificateNamesAreBounded(t *testing.T) {
	leaf := &x509.Certificate{
		DNSNames: slices.Repeat([]string{"a"}, 5_000), IPAddresses: slices.Repeat([]net.IP{{192, 0, 2, 1}}, 5_000),
	}
	if n := len(config.CertificateNames(leaf)); n != 2_000 {
		t.Errorf("%d names are used, want 1,000 of each kind", n)
	}
}

// The result equals the result of the standard library for the certificate that the client gets.
func TestCertificatesCover(t *testing.T) {
	first := &x509.Certificate{
		DNSNames:    []string{"turn.example.com", "*.calls.example.com", "*.example.org"},
		IPAddresses: []net.IP{net.IPv4(203, 0, 113, 7)},
	}
	second := &x509.Certificate{DNSNames: []string{"meet.example.net"}, IPAddresses: []net.IP{net.ParseIP("2001:db8::7")}}
	names := [][]string{config.CertificateNames(first), config.CertificateNames(second)}
	for _, host := range []string{
		"turn.example.com", "TURN.example.COM", "turn.example.com.", "other.example.com", "a.calls.example.com",
		"a.b.calls.example.com", "calls.example.com", ".calls.example.com", "example.org", "a.example.org", "com", "",
		"localhost", "203.0.113.7", "203.0.113.8", "2001:db8::8", "meet.example.net",
	} {
		verified := first.VerifyHostname(host) == nil || second.VerifyHostname(host) == nil
		if got := config.CertificatesCover(names, host); got != verified {
			t.Errorf("%q: %t, and the standard library %t", host, got, verified)
		}
	}
	for host, want := range map[string]bool{
		"::ffff:203.0.113.7": true,
		"2001:db8::7":        false, // only a client that sends a server name gets the second certificate
	} {
		if got := config.CertificatesCover(names, host); got != want {
			t.Errorf("%s: %t, want %t", host, got, want)
		}
	}
	for host, names := range map[string][][]string{
		"203.0.113.7": nil, "turn.example.com": nil, "localhost": {{"*."}}, "2001:db8::7": {nil, {"2001:db8::7"}},
	} {
		if config.CertificatesCover(names, host) {
			t.Errorf("%q cover %q", names, host)
		}
	}
}

// A tenant writes the Secret of a certificate, so a name in it is used as a host only if every client can resolve the
// name and the name is a valid host of a URI.
func TestCertificateHost(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + strings.Repeat("a", 61)
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"turn.example.com", "www.example.com"}, "turn.example.com"},
		{[]string{"TURN.Example.com"}, "turn.example.com"},
		{[]string{"xn--bcher-kva.example"}, "xn--bcher-kva.example"},
		{[]string{"*.example.com"}, ""},
		{[]string{"*.example.com", "example.com"}, "example.com"},
		{[]string{"203.0.113.7", "2001:db8::7"}, ""},
		{[]string{"localhost", "turn", "turn.localhost", "printer.LOCAL", "turn.media.svc"}, ""},
		{[]string{"turn.media.svc.cluster.local", "turn.example.com"}, "turn.example.com"},
		{[]string{longest}, longest},
		{[]string{longest + "a"}, ""},
		{[]string{label + "a.example.com"}, ""},
		{[]string{
			"", ".", "..", "a.", ".a", "turn.example.com.", "-a.example.com", "a..example.com", "turn example.com",
			"turn.example.com ",
			`turn."example".com`, "turn.example.com\x00", "turn.example.com\r\nX: y", "turn.example.com:443",
			"turn.example.com?transport=udp",
			"turn.example.com/x", "u@turn.example.com", "$STUNNER_SECRET.example.com", "turn.例え.jp", "\u212a.example.com",
			"[::1]", "1.2.3", "a.1",
		}, ""},
	} {
		got := config.CertificateHost(c.names)
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.names, got, c.want)
		}
		if got == "" {
			continue
		}
		l := config.Listener{Protocol: config.TURNTLS, Port: 443, PublicHost: got}
		uri, err := config.ParseURI(l.URIs()[0].String())
		if err != nil || uri.Host != got || !config.CertificatesCover([][]string{c.names}, got) {
			t.Errorf("URI %s: %v", l.URIs()[0], err)
		}
	}
}

// FuzzCertificateHost: for any names of a certificate, the host is one of them, is a valid host of a URI, and is
// accepted for the certificate by the standard library.
func FuzzCertificateHost(f *testing.F) {
	for _, seed := range []string{"turn.example.com", "*.example.com", "a b.example", "\u212a.example", "1.2.3.4", "a.b.", "A.example"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		host := config.CertificateHost([]string{"*.example.com", name})
		if host == "" {
			return
		}
		l := config.Listener{Protocol: config.TURNTLS, Port: 443, PublicHost: host}
		uri, err := config.ParseURI(l.URIs()[0].String())
		if err != nil || uri.Host != host || !bytes.EqualFold([]byte(host), []byte(name)) ||
			(&x509.Certificate{DNSNames: []string{name}}).VerifyHostname(host) != nil {
			t.Errorf("%q: host %q, %v", name, host, err)
		}
	})
}
