package decode

import (
	"slices"
	"testing"
)

func TestFieldLine(t *testing.T) {
	text := "# first\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  type: static\n---\n" +
		"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: b\n    labels:\n      x/y.z: w\n" +
		"---\nnot: [yaml\n"
	for _, c := range []struct {
		object int
		field  string
		line   int
		found  bool
	}{
		{2, "stringData.type", 6, true},
		{2, "stringData.user", 5, false},
		{2, "", 2, true},
		{2, "data.type", 2, false},
		{11, "metadata.labels.x/y.z", 16, true},
		{11, "metadata.annotations", 13, false},
		{18, "not", 18, false},
		{99, "kind", 99, false},
	} {
		if line, found := FieldLine([]byte(text), c.object, c.field); line != c.line || found != c.found {
			t.Errorf("%q of the object at %d: line %d %v, want %d %v", c.field, c.object, line, found, c.line, c.found)
		}
	}
	want := []Place{{2, "Secret", "a"}, {11, "Node", "b"}}
	if got := Places([]byte(text)); !slices.Equal(got, want) {
		t.Errorf("places %v, want %v", got, want)
	}
}

// Every kind is read in the API versions that its CRD serves, and in no other version.
func TestServedVersions(t *testing.T) {
	for apiVersion, kinds := range map[string]map[string]bool{
		"gateway.networking.k8s.io/v1":       {"GatewayClass": true, "Gateway": true, "ReferenceGrant": true, "UDPRoute": true},
		"gateway.networking.k8s.io/v1beta1":  {"GatewayClass": true, "Gateway": true, "ReferenceGrant": true, "UDPRoute": false},
		"gateway.networking.k8s.io/v1alpha2": {"GatewayClass": false, "Gateway": false, "ReferenceGrant": false, "UDPRoute": true},
		"stunner.l7mp.io/v1":                 {"GatewayConfig": true, "Dataplane": true, "StaticService": true, "UDPRoute": true},
		"stunner.l7mp.io/v1alpha1":           {"GatewayConfig": true, "Dataplane": true, "StaticService": true, "UDPRoute": false},
		"stunner.l7mp.io/v1beta1":            {"GatewayConfig": false, "Dataplane": false, "StaticService": false, "UDPRoute": false},
	} {
		for kind, served := range kinds {
			_, problems := File("f.yaml", []byte("apiVersion: "+apiVersion+"\nkind: "+kind+"\nmetadata: {name: a}\n"))
			refused := slices.ContainsFunc(problems, func(p Problem) bool { return p.Field == "apiVersion" && p.Severity == Error })
			if refused == served {
				t.Errorf("%s %s: %v, want served %v", apiVersion, kind, problems, served)
			}
		}
	}
}
