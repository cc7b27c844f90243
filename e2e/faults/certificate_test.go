package faults

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// certificates are rotated during calls. One of the new pairs is invalid.
func TestR12Certificates(t *testing.T) {
	const rotations = 20
	b := newBench(t)
	b.run()
	live := b.calls(2, call.TLS, call.DTLS)
	roots := x509.NewCertPool()
	var slowest time.Duration
	for i := range rotations {
		if i == rotations/2 {
			b.brokenPair(roots)
		}
		roots = b.rotate()
		began := time.Now()
		for _, network := range []call.Network{call.TLS, call.DTLS} {
			b.within(
				time.Second, fmt.Sprintf("new %s handshakes get certificate %d", network, i), b.shows(network, roots),
			)
		}
		slowest = max(slowest, time.Since(began))
	}
	t.Logf("new certificate at both listeners after at most %s", slowest)
	b.unharmed(live, silence)
}

// rotate gives the secure listeners a new certificate, and returns a pool that trusts only this one.
func (b *bench) rotate() *x509.CertPool {
	b.t.Helper()
	chain, private, err := bed.Certificate()
	if err != nil {
		b.t.Fatal(err)
	}
	b.show(encoded(chain), credential.Secret(encoded(private)))
	b.write(b.config)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(chain)
	return roots
}

func (b *bench) show(cert string, key credential.Secret) {
	for i, l := range b.config.Listeners {
		if l.Protocol.Secure() {
			b.config.Listeners[i].Cert, b.config.Listeners[i].Key = cert, key
		}
	}
}

// shows returns the condition that a new call over the transport gets a certificate that roots trust.
func (b *bench) shows(network call.Network, roots *x509.CertPool) func(context.Context) error {
	o := b.options(network)
	o.Roots = roots
	return b.admits(o)
}

// brokenPair writes a certificate with a key that does not match. The status reports it, and the previous certificate
// stays in use.
func (b *bench) brokenPair(roots *x509.CertPool) {
	b.t.Helper()
	cert, _ := b.certificate()
	broken := b.config.Clone()
	for i, l := range broken.Listeners {
		if l.Protocol.Secure() {
			broken.Listeners[i].Cert = cert
		}
	}
	running := b.status().Revision
	b.write(broken)
	b.await("the status reports the mismatch", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil &&
			(st.Revision != running || !strings.Contains(st.Problem, ".cert") && !strings.Contains(
				st.Problem, ".key",
			)) {
			err = fmt.Errorf("revision %q, problem %q", st.Revision, st.Problem)
		}
		return err
	})
	for _, network := range []call.Network{call.TLS, call.DTLS} {
		b.await("the previous certificate is in use", b.shows(network, roots))
	}
}
