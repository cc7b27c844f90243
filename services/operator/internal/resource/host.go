package resource

import "k8s.io/apimachinery/pkg/types"

// Host is where dataplanes run that a provider starts itself, on its own host. It takes the place of the Services from which the
// public address of a Gateway is read in a cluster.
type Host struct {
	// Address is what clients connect to, and what relay sockets are told of.
	Address string
	// Ports are the ports that listeners bind and that clients connect to.
	Ports map[ListenerKey]int
	// Admin are the loopback ports of each Gateway's process.
	Admin map[types.NamespacedName]AdminPorts
}

// ListenerKey names one listener of one Gateway.
type ListenerKey struct {
	Namespace string
	Gateway   string
	Listener  string
}

// AdminPorts are the ports on which a process answers its operators; 0 leaves one out.
type AdminPorts struct {
	Metrics int
	Health  int
}
