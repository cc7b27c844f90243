package file

import (
	"strings"
	"testing"
)

// The report names settings of the existing system that this release reads in another way or not at all. A route may
// have the Service of its Gateway as backend.
func TestProviderReportsFormerInput(t *testing.T) {
	s := newSite(t)
	s.provider.Watch = false
	s.write("class.yaml", strings.Replace(classYAML, "enableMetricsEndpoint: true", "dataplaneResource: DaemonSet, replicas: 3", 1))
	s.write("gateway.yaml", strings.Replace(gatewayYAML, "TURN-UDP", "UDP", 1))
	s.write("routes/media.yaml", `apiVersion: gateway.networking.k8s.io/v1alpha2
kind: UDPRoute
metadata: {name: media, namespace: calls}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: door, port: 1}]}]
`)
	if err := s.provider.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	const route = "status/udproute.v1alpha2.gateway.networking.k8s.io/calls_media.yaml"
	for name, want := range map[string]string{
		"status/dataplane/default.yaml":     "spec.replicas is ignored",
		"status/gateway/calls_door.yaml":    "type: DeprecatedInput",
		route:                               "reason: ResolvedRefs",
		"objects/calls/configmap-door.yaml": `"protocol":"TURN-UDP"`,
	} {
		if !strings.Contains(s.output(name), want) {
			t.Errorf("%s does not contain %q:\n%s", name, want, s.output(name))
		}
	}
}
