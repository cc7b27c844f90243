package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	dtlsnet "github.com/pion/dtls/v3/pkg/net"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// certificates are faults in which a proxy in front of a listener serves another certificate. field is the field of the
// findings.
func certificates(t *testing.T, e *env.Env, l *env.Listener, field string) (faults []fault) {
	at, network := l.Addresses()[0], l.Config().Network()
	now := time.Now()
	right := x509.Certificate{IPAddresses: []net.IP{at.Addr().AsSlice()}, NotAfter: now.AddDate(1, 0, 0)}
	other, expired, alone := right, right, right
	other.IPAddresses, other.DNSNames = nil, []string{"other.example.org"}
	expired.NotAfter = now.Add(-time.Hour)
	alone.IssuingCertificateURL = []string{"http://ca.example.org/intermediate.crt"}
	for _, row := range []struct {
		name, severity, problem string
		pair                    tls.Certificate
	}{
		{"a certificate for another name", "error", "a certificate for other.example.org, and clients are told " + at.Addr().String(),
			issue(t, other, nil)},
		{"an expired certificate", "error", "a certificate that expired on", issue(t, expired, nil)},
		{"a certificate without that of its issuer", "error", "its certificate without the one of its issuer CN=Intermediate CA",
			issue(t, alone, nil)},
		{"a self-signed certificate", "warning", "a self-signed certificate", issue(t, right, &right)},
		{"an expired certificate of its issuer", "error", "a chain with an expired certificate of CN=Intermediate CA",
			issue(t, right, &x509.Certificate{NotAfter: now.Add(-time.Hour)})},
	} {
		f := fault{name: row.name + " at listener " + l.Name, object: "Gateway " + l.Gateway.ID(), severity: row.severity,
			field: field, problem: fmt.Sprintf("%s/%s serves %s", at, network, row.problem)}
		f.make, f.undo = redirect(e, l, proxy(t, e, l, row.pair), "fault")
		faults = append(faults, f)
	}
	return faults
}

// redirect redirects what this host sends to a listener to another port.
func redirect(e *env.Env, l *env.Listener, port int, table string) (set, undo func(*testing.T)) {
	at, priority := l.Addresses()[0], -100
	if table == "fault" {
		priority = -110
	}
	return rulesOf(e.Net.Nodes[0].Space, table, fmt.Sprintf("chain output { type nat hook output priority %d;\nip daddr %s %s dport %d "+
		"redirect to :%d\n}", priority, at.Addr(), l.Config().Network(), at.Port(), port))
}

// issue issues a certificate. Without an issuer, the issuer is an intermediate CA whose certificate is left out. If the
// issuer is the certificate itself, it is self-signed. Any other issuer is an intermediate CA whose certificate is
// added.
func issue(t *testing.T, leaf x509.Certificate, issuer *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(one, by *x509.Certificate) []byte {
		raw, err := x509.CreateCertificate(rand.Reader, one, by, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	begun := time.Now().Add(-48 * time.Hour)
	leaf.SerialNumber, leaf.NotBefore = big.NewInt(2), begun
	if issuer != nil && len(issuer.IPAddresses) > 0 {
		leaf.Subject = pkix.Name{CommonName: "leaf"}
		return tls.Certificate{Certificate: [][]byte{sign(&leaf, &leaf)}, PrivateKey: key}
	}
	ca := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Intermediate CA"}, NotBefore: begun}
	chain := [][]byte{sign(&leaf, &ca)}
	if issuer != nil {
		ca.NotAfter = issuer.NotAfter
		root := x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "Root CA"}}
		chain = append(chain, sign(&ca, &root))
	}
	return tls.Certificate{Certificate: chain, PrivateKey: key}
}

// proxy ends TLS or DTLS with a certificate, and opens a connection to the listener for each connection. It returns its
// port.
func proxy(t *testing.T, e *env.Env, l *env.Listener, c tls.Certificate) (port int) {
	t.Helper()
	host, datagrams := e.Net.Nodes[0], l.Config().Network() == "udp"
	var listener net.Listener
	var err error
	host.Do(func() {
		if datagrams {
			listener, err = dtls.ListenWithOptions("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, dtls.WithCertificates(c))
		} else {
			listener, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{c}})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.Port())
	inward := func() (to net.Conn, err error) {
		host.Do(func() { to, err = net.Dial(l.Config().Network(), own.String()) })
		switch {
		case err != nil || !l.Secure():
			return to, err
		case datagrams:
			return dtls.ClientWithOptions(dtlsnet.PacketConnFromConn(to), to.RemoteAddr(), dtls.WithInsecureSkipVerify(true))
		}
		return tls.Client(to, &tls.Config{InsecureSkipVerify: true}), nil
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) || err != nil && !datagrams {
				return
			}
			if err != nil {
				continue // a failed handshake ends one connection only
			}
			go func() {
				defer conn.Close()
				inner, err := inward()
				if err != nil {
					return
				}
				defer inner.Close()
				go func() { _, _ = io.Copy(inner, conn); inner.Close() }()
				_, _ = io.Copy(conn, inner)
			}()
		}
	}()
	return int(netip.MustParseAddrPort(listener.Addr().String()).Port())
}

// faultsOfTLSAtBalancer are faults of the certificate of a load balancer that ends TLS. The Gateway does not have this
// certificate.
func faultsOfTLSAtBalancer(t *testing.T, p *installation) []fault {
	e, tcp := p.Env, p.Gateways[0].Listeners[1]
	right := x509.Certificate{IPAddresses: []net.IP{tcp.Addresses()[0].Addr().AsSlice()}, NotAfter: time.Now().AddDate(1, 0, 0)}
	set, undo := redirect(e, tcp, proxy(t, e, tcp, issue(t, right, nil)), "balancer")
	set(t)
	t.Cleanup(func() { undo(t) })
	p.healthy(t)
	faults := certificates(t, e, tcp, "spec.listeners[tcp]")
	for i := range faults {
		faults[i].remedy, faults[i].onlyPackets = "at the load balancer, which ends TLS", true
	}
	return faults
}
