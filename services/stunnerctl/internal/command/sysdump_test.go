package command

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// marker is in every text that must not be in an archive.
const marker = "PLANTED-MARKER"

// dumped are the objects of a cluster. Only objects of STUNner belong into the archive, without the marker.
var dumped = []string{
	`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: turn}, spec: {controllerName: stunner.l7mp.io/x}}`,
	`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: front, namespace: media}, spec: {gatewayClassName: turn}}`,
	`{apiVersion: v1, kind: Pod, metadata: {name: auth-1, namespace: media, labels: {app: stunner-auth}},
	  spec: {containers: [{name: auth, args: ["--password", PLANTED-MARKER, "--database=postgres://user:PLANTED-MARKER@db/x"],
	  env: [{name: TOKEN, value: PLANTED-MARKER}]}]}, status: {containerStatuses: [{name: auth}]}}`,
	`{apiVersion: apps/v1, kind: Deployment, metadata: {name: edge-auth, namespace: media, labels: {app.kubernetes.io/part-of: stunner}},
	  spec: {selector: {matchLabels: {app: edge-auth}}}}`,
	`{apiVersion: v1, kind: Pod, metadata: {name: edge-auth-1, namespace: media, labels: {app: edge-auth, pod-template-hash: x}},
	  spec: {containers: []}, status: {containerStatuses: [{name: auth}]}}`,
	`{apiVersion: v1, kind: Pod, metadata: {name: shop, namespace: media, annotations: {note: PLANTED-MARKER}}, spec: {containers: []}}`,
	`{apiVersion: v1, kind: Secret, metadata: {name: keys, namespace: media}, data: {note: PLANTED-MARKER}}`,
	`{apiVersion: v1, kind: Service, metadata: {name: shop, namespace: shop, annotations: {note: PLANTED-MARKER}}}`,
	`{apiVersion: apps/v1, kind: Deployment, metadata: {name: shop, namespace: shop, annotations: {note: PLANTED-MARKER}}}`,
	`{apiVersion: v1, kind: Event, metadata: {name: shop, namespace: shop}, message: PLANTED-MARKER, involvedObject: {kind: Pod, name: shop}}`,
}

// The archive contains the objects of STUNner, and no secrets, no personal data and no other objects.
func TestSysdump(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	log := `{"msg":"gave credential","subject":"PLANTED-MARKER","user":"PLANTED-MARKER","source":"203.0.113.7"}` + "\n" +
		`msg="sessions are ended" target="/sessions?user=PLANTED-MARKER" url=postgres://user:PLANTED-MARKER@db/x` + "\n"
	flags := fakeCluster(t, log, dumped...)
	if out, errs, code := execute(t, "", append(flags, "sysdump", "--file", file)...); code != 0 || strings.TrimSpace(out) != file {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	files := untar(t, file)
	for name, text := range files {
		if strings.Contains(text, marker) || strings.Contains(text, "203.0.113.7") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
	for _, want := range []string{
		"objects/media/gateway.gateway.networking.k8s.io/front.yaml", "objects/media/pod/auth-1.yaml", "logs/media/auth-1/auth.log",
		"logs/media/edge-auth-1/auth.log",
	} {
		if files["sysdump/"+want] == "" {
			t.Errorf("no file %s", want)
		}
	}
}

func untar(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		text, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[h.Name] = string(text)
	}
}
