package probe

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// certificates are faults in which a proxy in front of a TLS listener serves another certificate.
func certificates(t *testing.T, e *env.Env, l *env.Listener) (faults []fault) {
	at := l.Addresses()[0]
	year := time.Now().AddDate(1, 0, 0)
	for _, row := range []struct {
		name, problem string
		leaf          x509.Certificate
	}{
		{"a certificate for another name", "a certificate for other.example.org, and clients are told " + at.Addr().String(),
			x509.Certificate{DNSNames: []string{"other.example.org"}, NotAfter: year}},
		{"an expired certificate", "a certificate that expired on",
			x509.Certificate{IPAddresses: []net.IP{at.Addr().AsSlice()}, NotAfter: time.Now().Add(-time.Hour)}},
		{"a certificate without that of its issuer", "its certificate without the one of its issuer CN=Intermediate CA",
			x509.Certificate{IPAddresses: []net.IP{at.Addr().AsSlice()}, NotAfter: year,
				IssuingCertificateURL: []string{"http://ca.example.org/intermediate.crt"}}},
	} {
		f := fault{name: row.name, object: "Gateway " + l.Gateway.ID(), severity: "error",
			field: "spec.listeners[" + l.Name + "].tls.certificateRefs", problem: at.String() + "/tcp serves " + row.problem}
		port := proxy(t, e, l, issue(t, row.leaf))
		f.make, f.undo = rules(e.Net.Nodes[0].Space, fmt.Sprintf(
			"chain output { type nat hook output priority -100;\nip daddr %s tcp dport %d redirect to :%d\n}", at.Addr(), at.Port(), port))
		faults = append(faults, f)
	}
	return faults
}

// issue issues a certificate by an intermediate CA, whose own certificate is left out.
func issue(t *testing.T, leaf x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf.SerialNumber, leaf.NotBefore = big.NewInt(2), time.Now().Add(-48*time.Hour)
	issuer := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Intermediate CA"}}
	raw, err := x509.CreateCertificate(rand.Reader, &leaf, &issuer, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// proxy ends TLS with a certificate, and makes a TLS connection to the listener for each. It returns its port.
func proxy(t *testing.T, e *env.Env, l *env.Listener, c tls.Certificate) (port int) {
	t.Helper()
	host := e.Net.Nodes[0]
	var listener net.Listener
	var err error
	host.Do(func() { listener, err = net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.Port())
	go func() {
		for {
			conn, err := tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{c}}).Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var to net.Conn
				host.Do(func() { to, err = net.Dial("tcp", own.String()) })
				if err != nil {
					return
				}
				inner := tls.Client(to, &tls.Config{InsecureSkipVerify: true})
				defer inner.Close()
				go func() { _, _ = io.Copy(inner, conn); inner.Close() }()
				_, _ = io.Copy(conn, inner)
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}
