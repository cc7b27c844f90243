package render

import (
	"slices"
	"strings"
	"testing"
)

// An object whose translation panics is an error, and the others are rendered and checked.
func TestPanicOfATranslationIsAProblem(t *testing.T) {
	gateway := func(namespace string) string {
		return strings.ReplaceAll(`apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door, namespace: NAMESPACE}
spec:
  gatewayClassName: stunner
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media, namespace: NAMESPACE}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: media}]}]
---
apiVersion: v1
kind: Service
metadata: {name: media, namespace: NAMESPACE}
spec: {selector: {app: media}, ports: [{port: 5000, protocol: UDP}]}
---
`, "NAMESPACE", namespace)
	}
	const parameters = `apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: stunner, namespace: stunner-system}
spec: {realm: calls.example.com, authType: static, userName: caller, password: marzipan-and-rosewater}
`
	opt := DefaultOptions()
	opt.Room.Elsewhere = func(namespace string) int {
		if namespace == "bad" {
			panic(namespace)
		}
		return 0
	}
	r := Files(map[string][]byte{"all.yaml": []byte(gateway("bad") + gateway("good") + parameters)}, opt)
	if len(r.Configs) != 1 || r.Configs[0].Admin.Name != "good/front-door" {
		t.Errorf("configs %v", r.Configs)
	}
	failed := slices.DeleteFunc(r.Problems, func(p Problem) bool { return p.Severity != Error })
	if len(failed) != 1 || failed[0].Kind != "Gateway" || failed[0].Namespace != "bad" || failed[0].Line != 1 ||
		!strings.Contains(failed[0].Message, "fault of this program: a panic in render.TestPanicOfATranslationIsAProblem") {
		t.Errorf("problems %+v", failed)
	}
}
