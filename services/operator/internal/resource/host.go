package resource

import "k8s.io/apimachinery/pkg/types"

// Host is the host on which the file provider runs dataplanes. In a cluster, Services provide the public address of a
// Gateway; without a cluster, Host does.
type Host struct {
	// Addresses are the public addresses of all listeners, at most one of each family. Relay sockets have the address
	// of the family that a client requests, or else the first address.
	Addresses []string
	// Ports are the ports on which listeners receive packets of clients. They are also the public ports of the
	// listeners.
	Ports map[ListenerKey]int
	// Admin are the ports, on the loopback address, for the metrics and health check endpoints of each Gateway's
	// process.
	Admin map[types.NamespacedName]AdminPorts
}

// Port returns the port that a listener binds. The result is false if the listener has no port, or if h is nil because
// dataplanes run in a cluster.
func (h *Host) Port(gateway types.NamespacedName, listener string) (port int, ok bool) {
	if h != nil {
		port, ok = h.Ports[ListenerKey{gateway.Namespace, gateway.Name, listener}]
	}
	return port, ok
}

// ListenerKey names a listener of a Gateway.
type ListenerKey struct {
	Namespace string
	Gateway   string
	Listener  string
}

// AdminPorts are the ports of the metrics and health check endpoints of a dataplane process; 0 disables the endpoint.
type AdminPorts struct {
	Metrics int
	Health  int
}
