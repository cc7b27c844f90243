package translate

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Socket is the socket that a listener needs on the host of the file provider.
type Socket struct {
	Listener string
	// Held means that the listener keeps the socket of its published config, if it was published, see held.go. Network
	// and Port are then unknown.
	Held    bool
	Network string // udp or tcp
	Port    int32
}

// Sockets returns the sockets of a Gateway in the order of its listeners. The decision is that of the function Gateway,
// except that it is Served for a Gateway that is Held, because its listeners have sockets too.
func Sockets(v *resource.View, key types.NamespacedName, opt Options) (sockets []Socket, decision Decision) {
	gw := v.Gateway(key)
	class, decision := classOf(v, gw, opt)
	if class == nil {
		return nil, decision
	}
	p, _ := parametersOf(v, gw, class, opt)
	a, _ := annotationsOf(gw, p.config)
	for _, l := range listenersOf(v, gw, a, p, nil) {
		switch {
		case l.served():
			sockets = append(sockets, Socket{Listener: l.name(), Network: l.network(), Port: int32(l.spec.Port)})
		case l.held():
			sockets = append(sockets, Socket{Listener: l.name(), Held: true})
		}
	}
	return sockets, decision
}
