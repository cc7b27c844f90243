package resource

import "k8s.io/apimachinery/pkg/types"

// Host is the host on which the file provider runs dataplanes. It replaces the Services, which provide the public
// address of a Gateway in a cluster.
type Host struct {
	// Address is the public address of all listeners, and the address of relay sockets.
	Address string
	// Ports are the ports that listeners bind, which are also their public ports.
	Ports map[ListenerKey]int
	// Admin are the ports, on the loopback address, for the metrics and health check endpoints of each Gateway's
	// process.
	Admin map[types.NamespacedName]AdminPorts
}

// Port returns the port that a listener binds; false if it has no port, or if h is nil because dataplanes run in a
// cluster.
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

// AdminPorts are the ports of the metrics and health check endpoints of a process; 0 disables the endpoint.
type AdminPorts struct {
	Metrics int
	Health  int
}
