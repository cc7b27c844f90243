package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// identity is a self-signed certificate with its key, encoded as in a config.
type identity struct {
	cert string
	key  credential.Secret
}

func newIdentity(t *testing.T, name string) identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	armour := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return identity{armour("CERTIFICATE", der), credential.Secret(armour("PRIVATE KEY", keyDER))}
}

// show sets the certificate of the listeners that need one.
func (b *fixture) show(c *config.Config, id identity) {
	for i, l := range c.Listeners {
		if l.Protocol.Secure() {
			c.Listeners[i].Cert, c.Listeners[i].Key = id.cert, id.key
		}
	}
}

// shown returns the name in the certificate that a new TLS client receives.
func (b *fixture) shown(offered ...string) (name, negotiated string, err error) {
	conn, err := tls.Dial(
		"tcp4", fmt.Sprintf("127.0.0.1:%d", b.port("tls")), &tls.Config{InsecureSkipVerify: true, NextProtos: offered},
	)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	st := conn.ConnectionState()
	return st.PeerCertificates[0].Subject.CommonName, st.NegotiatedProtocol, nil
}

// changes of certificates, including invalid ones, do not affect sessions.
func TestCertificateChangesInPlace(t *testing.T) {
	b := newFixture(t)
	calls := map[string]*call{"tls": b.mustDial("tls", "ann", "first"), "dtls": b.mustDial("dtls", "ann", "first")}
	for i := range 10 {
		name := fmt.Sprint("certificate ", i)
		b.apply(b.changed(func(c *config.Config) { b.show(c, newIdentity(t, name)) }))
		if got, _, err := b.shown(); err != nil || got != name {
			t.Fatalf("new client sees %q, %v", got, err)
		}
		for transport, c := range calls {
			if err := c.echo("still here"); err != nil {
				t.Fatalf("%s call after change %d: %v", transport, i, err)
			}
		}
	}
	broken := b.changed(func(c *config.Config) {
		b.show(c, identity{newIdentity(t, "x").cert, newIdentity(t, "y").key})
	})
	if err := broken.Validate(); err == nil {
		t.Error("a certificate with the key of another passes validation")
	}
	if _, err := b.Apply(broken); err == nil || !strings.Contains(err.Error(), "test/gateway/tls") {
		t.Errorf("error %v does not name the listener", err)
	}
	if got, _, err := b.shown(); err != nil || got != "certificate 9" {
		t.Errorf("after a broken pair a new client sees %q, %v", got, err)
	}
}

// N-06: stun.turn is negotiated with clients that offer it, and other ALPN protocols of clients do not fail the
// handshake.
func TestProtocolNegotiation(t *testing.T) {
	b := newFixture(t)
	for _, tc := range []struct {
		offered []string
		want    string
	}{
		{nil, ""}, {[]string{"stun.turn"}, "stun.turn"}, {[]string{"h2", "stun.nat-discovery"}, "stun.nat-discovery"},
		{[]string{"h2"}, ""},
	} {
		if _, got, err := b.shown(tc.offered...); err != nil || got != tc.want {
			t.Errorf("offered %v: agreed on %q, %v", tc.offered, got, err)
		}
	}
}

// T-16: old versions of TLS are refused.
func TestOldTLSIsRefused(t *testing.T) {
	b := newFixture(t)
	conn, err := tls.Dial(
		"tcp4", fmt.Sprintf("127.0.0.1:%d", b.port("tls")),
		&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
	)
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
}
