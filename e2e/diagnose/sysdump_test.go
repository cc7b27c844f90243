package diagnose

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planted are objects with a marker in each value that must not be in an archive: objects of others in the namespace of
// a Gateway and in another one, and secrets in an object with a label of STUNner.
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
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: auth, namespace: NS, labels: {app: stunner-auth}}
spec:
  replicas: 0
  selector: {matchLabels: {app: stunner-auth}}
  template:
    metadata: {labels: {app: stunner-auth}}
    spec:
      containers:
        - name: auth
          image: auth
          args: ["--token", "PLANTED-MARKER", "--database=postgres://user:PLANTED-MARKER@db/x"]
          env: [{name: API_KEY, value: PLANTED-MARKER}]
`

// The archive contains the objects of STUNner, and neither secrets nor objects of others.
func testSysdump(t *testing.T, o operator) {
	g := newGateway(t, o, "sysdump")
	g.serve(t)
	apply(t, "", g.own(planted))
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	out, err := exec.CommandContext(t.Context(), o.program("stunnerctl"), "sysdump", "--kubeconfig", control.Admin.Kubeconfig,
		"--file", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	must(t, err)
	names := ""
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		text, err := io.ReadAll(r)
		must(t, err)
		names += h.Name + "\n"
		if strings.Contains(string(text), "PLANTED-MARKER") {
			t.Errorf("%s:\n%s", h.Name, text)
		}
	}
	for _, want := range []string{
		"gateway.gateway.networking.k8s.io/front-door.yaml", "udproute.stunner.l7mp.io/media.yaml", "deployment.apps/auth.yaml",
		"pod/" + g.pod + ".yaml",
	} {
		if !strings.Contains(names, "objects/sysdump/"+want) {
			t.Errorf("no file %s in\n%s", want, names)
		}
	}
}
