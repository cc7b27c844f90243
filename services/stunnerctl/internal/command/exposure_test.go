package command

import (
	"strings"
	"testing"
)

// The row of a Gateway has the ports of its listeners, the traffic policy of its Services, and the relay ports of pods in
// the network of their node. Objects of other Gateways are not counted.
func TestStatus_ShowsPortsForFirewalls(t *testing.T) {
	const labels = "metadata: {name: frankfurt, namespace: media, labels: {stunner.l7mp.io/related-gateway-name: frankfurt}}\n"
	const service, pod = "apiVersion: v1\nkind: Service\n" + labels, "apiVersion: v1\nkind: Pod\n" + labels
	for _, tc := range []struct {
		name    string
		objects []string
		want    string
	}{
		{"no object", nil, "UDP/3478 udp - - -"},
		{"a load balancer", []string{service + "spec: {type: LoadBalancer, externalTrafficPolicy: Local}"}, "UDP/3478 udp LoadBalancer Local -"},
		{"node ports", []string{service + "spec: {type: NodePort, externalTrafficPolicy: Cluster}"}, "UDP/3478 udp NodePort Cluster -"},
		{
			"two Services", []string{
				service + "spec: {type: LoadBalancer, externalTrafficPolicy: Local}",
				strings.Replace(service, "name: frankfurt,", "name: frankfurt-tcp,", 1) + "spec: {type: LoadBalancer, externalTrafficPolicy: Cluster}",
			}, "UDP/3478 udp LoadBalancer Cluster, Local -",
		},
		{"a Service without a type", []string{service + "spec: {}"}, "UDP/3478 udp ClusterIP - -"},
		{"the host network", []string{service + "spec: {type: ClusterIP}", pod + "spec: {hostNetwork: true}"}, "UDP/3478 udp ClusterIP - UDP/any"},
		{
			"a range", []string{pod + "spec: {containers: [{name: stunnerd, env: [{name: STUNNER_RELAY_PORTS, value: 40000-41000}]}]}"},
			"UDP/3478 udp - - UDP/40000-41000",
		},
		{
			"another Gateway", []string{strings.ReplaceAll(service, "frankfurt", "berlin") + "spec: {type: LoadBalancer}"},
			"UDP/3478 udp - - -",
		},
		{"a Service that cannot be read", []string{service + "spec: {type: 7}"}, "UDP/3478 udp - - -"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newProvider(t)
			for i, o := range tc.objects {
				w.write(t, "objects/"+string(rune('a'+i))+".yaml", o)
			}
			out, _, _ := w.run(t, "status", "media/frankfurt")
			_, second, found := strings.Cut(out, "PORTS OF PEERS\n")
			row, _, _ := strings.Cut(second, "\n")
			if got := strings.Join(strings.Fields(row), " "); !found || got != "media/frankfurt "+tc.want {
				t.Errorf("%q, want %q in\n%s", got, tc.want, out)
			}
		})
	}
}
