package listener

import (
	"crypto/tls"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// protocols are offered by ALPN (RFC 7443). A client that names none is let in: browsers do not.
var protocols = []string{"stun.turn", "stun.nat-discovery"}

// knowsOurs tells whether one of the protocols that a client offers is ours.
func knowsOurs(offered []string) bool {
	return slices.ContainsFunc(offered, func(p string) bool { return slices.Contains(protocols, p) })
}

// certificate is what a listener shows to clients. It changes in place: handshakes from then on see the new one, sessions do not
// notice.
type certificate struct {
	current atomic.Pointer[tls.Certificate]
}

func newCertificate(c config.Listener) (*certificate, error) {
	cert := new(certificate)
	return cert, cert.update(c)
}

// update takes over the key pair of a config, or leaves everything as it is.
func (c *certificate) update(l config.Listener) error {
	pair, err := l.KeyPair()
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	c.current.Store(&pair)
	return nil
}
