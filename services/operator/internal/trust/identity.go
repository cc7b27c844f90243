package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// leafLifetime is the validity of the server certificate of a replica. The certificate is renewed after two thirds of
// this time.
const leafLifetime = 7 * 24 * time.Hour

// Identity is the TLS identity of one replica: its server certificate, which is kept only in memory, and the CAs with
// which it verifies other replicas.
type Identity struct {
	// Names are the host names and IP addresses in the server certificate. When replicas connect to each other, they
	// verify the first name.
	Names []string

	mu    sync.Mutex
	leaf  *tls.Certificate
	roots *x509.CertPool
	// issued is closed when the first certificate is issued; nil if no handshake is waiting for it.
	issued chan struct{}
}

// Renew replaces the trusted CAs. It issues a server certificate if there is none, if the current one is not in the
// first two thirds of its validity, or if another CA now signs.
func (i *Identity) Renew(a Authority, now time.Time) error {
	signer := a.signer(now)
	if signer.cert == nil {
		return errors.New(
			"make certificate of config discovery: no CA that can sign: wait for the leader to create one")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.roots = a.Pool()
	if i.leaf != nil && i.leaf.Leaf.CheckSignatureFrom(signer.cert) == nil && i.fresh(now) {
		return nil
	}
	expires := slices.MinFunc([]time.Time{now.Add(leafLifetime), signer.cert.NotAfter}, time.Time.Compare)
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stunner config discovery"},
		NotBefore:             now.Add(-skew),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, name := range i.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	cert, key, err := sign(template, signer)
	if err != nil {
		return fmt.Errorf("make certificate of config discovery: %w", err)
	}
	i.leaf = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	if i.issued != nil {
		close(i.issued)
		i.issued = nil
	}
	return nil
}

// certificateTime is how long a TLS handshake waits for the first server certificate. For a client, waiting is faster
// than failing and reconnecting.
const certificateTime = 4 * time.Second

var errNoCertificate = errors.New("show certificate of config discovery: there is none yet")

// certificate returns the current server certificate. If none was issued yet, it waits for up to certificateTime.
func (i *Identity) certificate(ctx context.Context) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	for {
		i.mu.Lock()
		if i.leaf != nil {
			defer i.mu.Unlock()
			return i.leaf, nil
		}
		if i.issued == nil {
			i.issued = make(chan struct{})
		}
		issued := i.issued
		i.mu.Unlock()
		select {
		case <-issued:
		case <-ctx.Done():
			return nil, errNoCertificate
		}
	}
}

// fresh reports whether the server certificate is in the first two thirds of its validity. The result is also false if
// its validity has not begun, because it was issued while the clock was ahead.
func (i *Identity) fresh(now time.Time) bool {
	made := i.leaf.Leaf.NotBefore
	return !now.Before(made) && now.Before(made.Add(skew+leafLifetime*2/3))
}

// Server returns the TLS configuration for listeners. Handshakes wait for the first certificate.
func (i *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // a WebSocket needs HTTP/1.1
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return i.certificate(hello.Context())
		},
	}
}

// Client returns the TLS configuration for connections to other replicas. It always verifies the name Names[0], because
// the replicas are reached at IP addresses. It verifies against the current CAs and does not set RootCAs, whose value
// would be fixed when the configuration is made.
func (i *Identity) Client() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // verified by VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			i.mu.Lock()
			roots := i.roots
			i.mu.Unlock()
			if roots == nil {
				return errors.New("check certificate of config discovery: no CA is known yet")
			}
			return verify(state.PeerCertificates[0], roots, i.Names[0], time.Time{})
		},
	}
}

// verify verifies a certificate for a host name in the same way as clients of config discovery do. A zero time stands
// for the current time.
func verify(leaf *x509.Certificate, roots *x509.CertPool, name string, now time.Time) error {
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now})
	return err
}
