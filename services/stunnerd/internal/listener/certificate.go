package listener

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// protocols are offered by ALPN (RFC 7443). Clients without ALPN, such as browsers, are served too.
var protocols = []string{"stun.turn", "stun.nat-discovery"}

// offersTURN reports whether a client offers one of protocols.
func offersTURN(offered []string) bool {
	return slices.ContainsFunc(offered, func(p string) bool { return slices.Contains(protocols, p) })
}

// certificates are the certificates of a listener. An update affects new handshakes only.
type certificates struct {
	current atomic.Pointer[[]tls.Certificate]
}

func newCertificates(c config.Listener) (*certificates, error) {
	certs := new(certificates)
	return certs, certs.update(c)
}

// update replaces the key pairs. After an error the previous key pairs stay.
func (c *certificates) update(l config.Listener) error {
	var pairs []tls.Certificate
	for i, cert := range l.AllCertificates() {
		pair, err := cert.KeyPair()
		if err != nil {
			return fmt.Errorf("read certificate %d: %w", i+1, err)
		}
		pairs = append(pairs, pair)
	}
	c.current.Store(&pairs)
	return nil
}

// named returns the first certificate that is valid for a server name (RFC 6066 §3), or else the first certificate.
func (c *certificates) named(name string) *tls.Certificate {
	pairs := *c.current.Load()
	for i := range pairs {
		if name != "" && pairs[i].Leaf.VerifyHostname(name) == nil {
			return &pairs[i]
		}
	}
	return &pairs[0]
}

// leaves returns the leaf certificates; none if c is nil.
func (c *certificates) leaves() (leaves []*x509.Certificate) {
	if c == nil {
		return nil
	}
	for _, pair := range *c.current.Load() {
		leaves = append(leaves, pair.Leaf)
	}
	return leaves
}
