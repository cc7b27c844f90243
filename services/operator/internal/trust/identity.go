package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// leafLifetime is how long a certificate of a replica is good. It is made anew after two thirds of that.
const leafLifetime = 7 * 24 * time.Hour

// Identity is how one replica shows that it is config discovery, and tells the others by the same: it holds a certificate in memory, which
// goes when the process goes.
type Identity struct {
	// Names are the host names and addresses under which clients reach the replicas; the first is the one that replicas call each other by.
	Names []string

	mu    sync.Mutex
	leaf  *tls.Certificate
	roots *x509.CertPool
	// made is closed when there is a certificate; nil while nobody waits for one.
	made chan struct{}
}

// Renew takes over what an authority is now, and makes a certificate if there is none, if the one that there is has seen two thirds of its
// life or is not good yet, or if another CA signs by now.
func (i *Identity) Renew(a Authority, now time.Time) error {
	signer := a.signer(now)
	if signer.cert == nil {
		return errors.New("make certificate of config discovery: no CA that can sign: wait for the leader to make one")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.roots = a.Pool()
	if i.leaf != nil && i.leaf.Leaf.CheckSignatureFrom(signer.cert) == nil && i.fresh(now) {
		return nil
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stunner config discovery"},
		NotBefore:             now.Add(-skew),
		NotAfter:              earlier(now.Add(leafLifetime), signer.cert.NotAfter),
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
	if i.made != nil {
		close(i.made)
		i.made = nil
	}
	return nil
}

// certificateTime is how long a handshake waits for a certificate: a client that fails comes back later than a client that waits.
const certificateTime = 4 * time.Second

var errNoCertificate = errors.New("show certificate of config discovery: there is none yet")

// certificate returns the certificate, and waits for it when there is none yet.
func (i *Identity) certificate(ctx context.Context) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	for {
		i.mu.Lock()
		if i.leaf != nil {
			defer i.mu.Unlock()
			return i.leaf, nil
		}
		if i.made == nil {
			i.made = make(chan struct{})
		}
		made := i.made
		i.mu.Unlock()
		select {
		case <-made:
		case <-ctx.Done():
			return nil, errNoCertificate
		}
	}
}

// fresh tells whether the certificate is in the first two thirds of its life. That has not begun where the clock was ahead when it was made.
func (i *Identity) fresh(now time.Time) bool {
	made := i.leaf.Leaf.NotBefore
	return !now.Before(made) && now.Before(made.Add(skew+leafLifetime*2/3))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Server is how a port shows the certificate. Before there is one, handshakes wait for it.
func (i *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"}, // a WebSocket takes a connection of its own
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return i.certificate(hello.Context()) },
	}
}

// Client is how another replica is told by its certificate, whatever the address at which it is reached. It follows the authority: the
// standard check would use the roots of the time when the value was made.
func (i *Identity) Client() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // checked below
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

// verify checks a certificate as clients do; the zero time is now.
func verify(leaf *x509.Certificate, roots *x509.CertPool, name string, now time.Time) error {
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now})
	return err
}
