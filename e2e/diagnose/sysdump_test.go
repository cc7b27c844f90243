package diagnose

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planted are objects with a marker in each value that must not be in an archive: a Secret, and objects of others in
// the namespace of a Gateway and in another namespace. The tests of the command plant secrets in objects of STUNner.
const planted = `
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: NS}
stringData: {password: PLANTED-MARKER}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: NS, annotations: {note: PLANTED-MARKER}}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: default, annotations: {note: PLANTED-MARKER}}
spec:
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {containers: [{name: shop, image: shop, args: ["--password", "PLANTED-MARKER"]}]}
`

// The archive contains the objects of STUNner, and neither secrets nor objects of others.
func testSysdump(t *testing.T, g *gateway) {
	apply(t, "", g.filled(planted))
	run := func(program string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v: %s", program, args, err, out)
		}
		return string(out)
	}
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	run(g.program("stunnerctl"), "sysdump", "--kubeconfig", control.Admin.Kubeconfig, "--file", file)
	before, after, found := strings.Cut(run("tar", "-xzOf", file), "PLANTED-MARKER")
	if found {
		t.Errorf("…%s <marker> %s…", before[max(0, len(before)-500):], after[:min(len(after), 100)])
	}
	names := run("tar", "-tzf", file)
	for _, want := range []string{
		"gateway.gateway.networking.k8s.io/front-door.yaml", "udproute.stunner.l7mp.io/media.yaml",
		"pod/" + g.pod + ".yaml",
	} {
		if !strings.Contains(names, "objects/"+g.namespace+"/"+want) {
			t.Errorf("no file %s in\n%s", want, names)
		}
	}
}
