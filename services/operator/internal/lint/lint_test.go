package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The supplied objects are those that the chart installs.
func TestSuppliedObjectsOfTheChart(t *testing.T) {
	mine := map[identity]resource.Object{}
	objects, problems := decode.File("chart", []byte(chart))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, o := range objects {
		mine[identityOf(o.Object)] = o.Object
	}
	files, err := filepath.Glob("../../../../kustomize/components/defaults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no defaults: %v", err)
	}
	found := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, _ := decode.File(file, data)
		for _, o := range objects {
			if found++; cmp.Diff(o.Object, mine[identityOf(o.Object)]) != "" {
				t.Errorf("%s differs (-installed +supplied):\n%s", file, cmp.Diff(o.Object, mine[identityOf(o.Object)]))
			}
		}
	}
	if found != 3 {
		t.Errorf("%d objects in %v, want a GatewayClass, a GatewayConfig and a Dataplane", found, files)
	}
}

// check returns the findings of a text, one a line.
func check(t *testing.T, text string) (lines string) {
	t.Helper()
	objects, problems := decode.File("f", []byte(text))
	for _, p := range append(problems, Check(Input{
		Files: map[string][]byte{"f": []byte(text)}, Objects: objects, Options: translate.DefaultOptions(),
	})...) {
		if !p.IsNotRead() {
			lines += fmt.Sprintf("%s %d %s: %s\n", p.Severity, p.Line, p.Field, p.Message)
		}
	}
	return lines
}

const app = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: a, namespace: app}
spec:
  gatewayClassName: stunner
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
`

// Input that belongs to other teams or controllers is not an error. Such input is an error if it evidently belongs to
// STUNner.
func TestCheck(t *testing.T) {
	const supplied = "Info 5 spec.gatewayClassName: GatewayClass stunner is not in the files, so the default of an installation is taken: add it if yours differs\n"
	const bare = "Info 6 spec.listeners: no route in the files attaches to the Gateway, so that its clients reach no peer: create a UDPRoute\n"
	for name, c := range map[string]struct{ text, want string }{
		"a Gateway of an application": {app, supplied + bare},
		"a Gateway of another controller": {
			"apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: mesh}\nspec: {controllerName: example.org/mesh}\n---\n" +
				"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: web}\nspec:\n  gatewayClassName: mesh\n  listeners: [{name: web, port: 80, protocol: HTTP}]\n",
			"",
		},
		"a Gateway of another controller with a protocol of TURN": {
			"apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: mesh}\nspec: {controllerName: example.org/mesh}\n---\n" +
				"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: web}\nspec:\n  gatewayClassName: mesh\n  listeners: [{name: web, port: 80, protocol: TURN-UDP}]\n",
			"Error 4 spec.controllerName: is not the controller name of STUNner, so that no Gateway of the class is served: use stunner.l7mp.io/gateway-operator\n",
		},
		"a Gateway of another installation": {
			strings.Replace(app, "stunner", "theirs", 1),
			"Error 5 spec.gatewayClassName: GatewayClass theirs is not in the files, so the Gateway is not checked: add it, or use stunner\n",
		},
		"a route of another kind": {
			app + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: b, namespace: app}\nspec:\n  parentRefs:\n    - name: a\n",
			supplied + bare + "Error 14 spec.parentRefs[0].name: Gateway app/a is served by STUNner, to which no HTTPRoute attaches: use a UDPRoute\n",
		},
		"a route to a Gateway of another team": {
			"apiVersion: stunner.l7mp.io/v1\nkind: UDPRoute\nmetadata: {name: b, namespace: app}\nspec:\n  parentRefs: [{name: a, namespace: infra}]\n  rules: [{backendRefs: [{name: media}]}]\n",
			"Info 5 spec.parentRefs[0].name: Gateway infra/a is not in the files, so it is not checked whether the route attaches to it: create it, or correct the name\n" +
				"Info 6 spec.rules[0].backendRefs[0].name: Service app/media is not in the files, so its endpoints are not checked: create it, or correct backendRefs\n",
		},
		"a Gateway of Istio": {
			"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: web}\n",
			"Info 1 apiVersion: Gateway of group \"networking.istio.io\" is not read: use group \"gateway.networking.k8s.io\", which STUNner reads\n",
		},
		"a Kustomization": {
			"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
			"Info 1 : a Kustomization is not built here, and the other files are read as they are: use stunnerctl lint, or build it with kubectl kustomize\n",
		},
	} {
		if diff := cmp.Diff(c.want, check(t, c.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
