package file

import (
	"strings"
	"testing"
)

// The status files have the references that lead from a Gateway to its parameters, and no other part of a spec, which
// may be secret.
func TestStatusFilesHaveReferences(t *testing.T) {
	s := newSite(t)
	s.write("config.yml", strings.Replace(configYAML, "authRef: {name: turn-auth}", "authType: ephemeral, sharedSecret: hunter2", 1))
	s.write("own.yaml", `apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own, namespace: calls}
spec: {userQuota: 7}
`)
	s.write("gateway.yaml", gatewayYAML+`  infrastructure:
    parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}
`)
	if err := s.provider.prepare(); err != nil {
		t.Fatal(err)
	}
	l, _ := panicking(t, s, func() bool { return false }, isDoor)
	if err := l.round(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"gatewayclass/turn.yaml": `spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef:
    group: stunner.l7mp.io
    kind: GatewayConfig
    name: turn
    namespace: calls
status:`,
		"gateway/calls_door.yaml": `spec:
  gatewayClassName: turn
  infrastructure:
    parametersRef:
      group: stunner.l7mp.io
      kind: GatewayConfig
      name: own
status:`,
		"gatewayconfig/calls_turn.yaml": "spec:\n  dataplane: default\nstatus:",
		"gatewayconfig/calls_own.yaml":  "spec:\n  dataplane: default\nstatus:",
		"dataplane/default.yaml":        "  name: default\nstatus:",
	} {
		if text := s.output("status/" + name); !strings.Contains(text, want) || strings.Contains(text, "hunter2") {
			t.Errorf("%s:\n%s\nwant\n%s", name, text, want)
		}
	}
}
