// Package v1 holds the Kubernetes kinds of group stunner.l7mp.io, version v1. They say what the Gateway API has no words for:
//
//   - GatewayConfig: what all Gateways of a GatewayClass share, above all how TURN clients authenticate.
//   - Dataplane: the pods that serve a Gateway: image, resources, placement, scaling. Cluster-scoped.
//   - UDPRoute: which backends, and which of their ports, the clients of a Gateway may reach.
//   - StaticService: a backend outside the cluster, given as IP prefixes.
//
// Defaults stand in markers and are filled in by the API server. An object that was read from a file has not been there;
// code that reads one uses the Default constants next to the fields.
//
// +kubebuilder:object:generate=true
// +groupName=stunner.l7mp.io
package v1
