package translate

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Socket is what a listener needs of the host that serves it.
type Socket struct {
	Listener string
	// Waits says that the listener keeps what it has, if it has something: Network and Port are not known.
	Waits   bool
	Network string // udp or tcp
	Port    int32
}

// Sockets lists what the listeners of a Gateway need, in their order; ours is false for a Gateway of somebody else's class.
func Sockets(v *resource.View, key types.NamespacedName, opt Options) (sockets []Socket, ours bool) {
	gw := v.Gateway(key)
	class := classOf(v, gw, opt)
	if class == nil {
		return nil, false
	}
	p, _ := parametersOf(v, gw, class, opt)
	w, _ := wishesOf(gw, p.config)
	for _, l := range listenersOf(v, gw, w, p) {
		switch {
		case l.served():
			sockets = append(sockets, Socket{Listener: l.name(), Network: l.network(), Port: int32(l.spec.Port)})
		case l.waits():
			sockets = append(sockets, Socket{Listener: l.name(), Waits: true})
		}
	}
	return sockets, true
}
