package gate

import (
	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// classic handles a request of RFC 3489, which has no magic cookie. A Binding request over UDP is answered (RFC 5389
// §12.2). RFC 8489 §11 demands 500 for any request over DTLS. RFC 3489 defines neither TURN nor streams, so any other
// request is malformed.
func (g *Gate) classic(r *request) {
	switch {
	case g.protocol == config.TURNDTLS:
		g.refuse(r, &refusal{code: stun.CodeServerError, reason: meter.BadRequest})
	case r.client.Connected(), r.Type.Method != stun.MethodBinding:
		g.drop(r.client, meter.Malformed)
	default:
		g.request(r)
	}
}
