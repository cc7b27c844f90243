//go:build node

package node_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// credentials and certificate are replaced during calls over every transport. New calls need the new
// credentials and the new certificate. Running calls continue, and can refresh with their original credential.
func secretsChange(s site) {
	first := s.certify()
	s.open("", udpListener, tcpListener,
		"{name: tls, port: 5349, protocol: TURN-TLS, tls: {certificateRefs: [{name: pair}]}}",
		"{name: dtls, port: 5349, protocol: TURN-DTLS, tls: {certificateRefs: [{name: pair}]}}")
	addresses := s.usual()
	addresses = append(addresses,
		listenerAddress{call.TLS, netip.AddrPortFrom(addresses[1].at.Addr(), 5349)},
		listenerAddress{call.DTLS, netip.AddrPortFrom(addresses[0].at.Addr(), 5349)})
	peer := s.echo()
	with := func(w listenerAddress, roots *x509.CertPool) call.Options {
		o := s.options(w, peer)
		o.Roots = roots
		return o
	}
	var calls []*call.Call
	for _, w := range addresses {
		calls = append(calls, s.dialWith(with(w, first)))
	}
	old := s

	second := s.certify()
	for _, w := range addresses[2:] {
		s.until(fmt.Sprintf("%s serves the new certificate", w.network), func(ctx context.Context) error {
			c, err := call.Start(s.Context(), with(w, second))
			if err == nil {
				s.hangUp(c)
			}
			return err
		})
		if c, err := call.Start(s.Context(), with(w, first)); err == nil {
			c.End(0)
			s.Errorf("%s: the old certificate is still served", w.network)
		}
	}
	s.goOn("another certificate", calls...)

	s.sign("the second secret")
	for _, w := range addresses {
		s.hangUp(s.dialWith(with(w, second)))
		o := old.options(w, peer)
		o.Roots = second
		s.refused(o, "401")
	}
	for _, c := range calls {
		if err := c.Renew(); err != nil {
			s.Errorf("a call cannot refresh with its original credential: %v", err)
		}
	}
	s.goOn("another secret", calls...)
	s.hangUp(calls...)
}

// certify replaces the certificate of the Gateways by one for every address that a Service may get, and returns the
// pool to verify it.
func (s site) certify() *x509.CertPool {
	s.Helper()
	var addresses []netip.Addr
	for a := netip.MustParseAddr("198.18.1.1"); a.Less(netip.MustParseAddr("198.18.2.0")); a = a.Next() {
		addresses = append(addresses, a)
	}
	chain, key, err := harness.Certificate(addresses...)
	if err != nil {
		s.Fatal(err)
	}
	s.kubectl(fmt.Sprintf("{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: pair}, stringData: {tls.crt: %q, tls.key: %q}}",
		chain, key), "apply", "-f", "-")
	return pool(chain)
}
