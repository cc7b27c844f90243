// Package v1 holds the Kubernetes kinds of the API group stunner.l7mp.io, version v1. They complement the Gateway API:
//
//   - GatewayConfig: the common settings of the Gateways of a GatewayClass, such as the authentication of TURN clients.
//   - Dataplane: the template of the pods that serve a Gateway: image, resources, placement, scaling. Cluster-scoped.
//   - UDPRoute: the backends, and their ports, that the clients of a Gateway can reach.
//   - StaticService: a backend outside the cluster, given as IP prefixes.
//   - Revocation: credentials that are refused before they expire.
//
// The API server sets the defaults in the markers. Code that reads objects from files uses the Default constants next
// to the fields.
//
// +kubebuilder:object:generate=true
// +groupName=stunner.l7mp.io
package v1
