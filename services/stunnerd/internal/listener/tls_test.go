package listener

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net"
	"testing"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// identities are the certificates of a listener: a certificate for all names, a certificate for some names, and a
// second certificate for one of these names.
func identities(t *testing.T, p config.Protocol) (c config.Listener) {
	t.Helper()
	c.Protocol = p
	c.Cert, c.Key = keyPair(t, "turn.example.org")
	for _, names := range [][]string{
		{"calls.example.net", "*.meet.example.net"}, {"calls.example.net", "late.example.net"},
	} {
		var more config.Certificate
		more.Cert, more.Key = keyPair(t, names...)
		c.Certificates = append(c.Certificates, more)
	}
	return c
}

// asked has the expected certificate for each server name of a client.
var asked = map[string]int{
	"": 0, "turn.example.org": 0, "elsewhere.example.com": 0,
	"calls.example.net": 1, "CALLS.example.net": 1, "a.meet.example.net": 1, "late.example.net": 2,
}

// encoded returns a certificate in the form of a config.
func encoded(der []byte) string {
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestTLSServesTheCertificateOfTheServerName(t *testing.T) {
	c := identities(t, config.TURNTLS)
	_, server := openSecure(t, c)
	for name, want := range asked {
		conn, err := greet(t, server, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err != nil || encoded(conn.PeerCertificates[0].Raw) != c.AllCertificates()[want].Cert {
			t.Errorf("%q: not certificate number %d; %v", name, want, err)
		}
	}
}

func TestDTLSServesTheCertificateOfTheServerName(t *testing.T) {
	c := identities(t, config.TURNDTLS)
	_, server := openSecure(t, c)
	for name, want := range asked {
		var shown []byte
		conn := newRaw(t, server)
		client, err := dtls.ClientWithOptions(conn, server, dtls.WithInsecureSkipVerify(true), dtls.WithServerName(
			name,
		),
			dtls.WithVerifyPeerCertificate(func(chain [][]byte, _ [][]*x509.Certificate) error {
				shown = chain[0]
				return nil
			}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		if err := client.HandshakeContext(ctx); err != nil || encoded(shown) != c.AllCertificates()[want].Cert {
			t.Errorf("%q: not certificate number %d; %v", name, want, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// greet connects and makes a request. The answer arrives after the session tickets.
func greet(t *testing.T, server *net.UDPAddr, settings *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	conn, err := tls.Dial("tcp4", server.String(), settings)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), binding(t, conn)
}

// If one of several certificates is unusable, all previous certificates stay.
func TestBrokenCertificateChangesNothing(t *testing.T) {
	c := identities(t, config.TURNTLS)
	certs, err := newCertificates(c)
	if err != nil {
		t.Fatal(err)
	}
	before := certs.current.Load()
	c.Certificates[1].Key = c.Key
	if err := certs.update(c); err == nil || certs.current.Load() != before {
		t.Errorf("taken over: %v", err)
	}
}

// T-16: a client can use its session ticket, although each handshake has a separate config.
func TestTLSSessionsAreResumed(t *testing.T) {
	_, server := openSecure(t, identities(t, config.TURNTLS))
	client := &tls.Config{
		ServerName: "calls.example.net", InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	for _, want := range []bool{false, true} {
		if conn, err := greet(t, server, client); err != nil || conn.DidResume != want {
			t.Errorf("resumed: %t, want %t; %v", conn.DidResume, want, err)
		}
	}
}
