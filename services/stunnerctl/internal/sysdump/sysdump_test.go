package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

// marker is in every secret of the test.
const marker = "PLANTED-MARKER"

// planted are objects with secrets in the places where users put them.
var planted = []string{`
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata:
  name: inline
  namespace: media
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"sharedSecret":"PLANTED-MARKER"}}'
    team: voice
spec: {sharedSecret: PLANTED-MARKER, password: PLANTED-MARKER, authRef: {name: kept-reference}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: media}
spec:
  volumes: [{name: v, secret: {secretName: kept-volume}}]
  containers:
    - name: app
      args: ["--auth-secret=PLANTED-MARKER", "--realm=kept-realm", "turn://user:PLANTED-MARKER@203.0.113.1:3478"]
      env:
        - {name: TURN_PASSWORD, value: PLANTED-MARKER}
        - {name: API_KEY, value: PLANTED-MARKER}
        - {name: REGION, value: kept-region}
        - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: kept-env, key: x}}}
`}

// source is a Source with the planted objects. One kind may not be listed, and one path is not answered.
type source struct{}

func (source) String() string { return "test" }
func (source) Close() error   { return nil }
func (source) Gateways(context.Context, string) ([]types.NamespacedName, error) {
	return []types.NamespacedName{{Namespace: "media", Name: "turn"}}, nil
}

func (source) Objects(_ context.Context, _ string, kinds ...schema.GroupKind) (found connect.Objects, err error) {
	for _, kind := range kinds {
		if kind == connect.KindSecret {
			return found, errors.New("secrets are listed")
		}
	}
	for _, text := range planted {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			return found, err
		}
		found.Items = append(found.Items, o)
	}
	found.Unread = []connect.Unread{{Kind: schema.GroupKind{Kind: "Node"}, Err: errors.New("forbidden")}}
	return found, nil
}

func (source) Ask(context.Context, connect.Request) (inspection.List, error) {
	return inspection.List{}, errors.New("not used")
}

func (source) Get(_ context.Context, path string, into any) error {
	if strings.HasSuffix(path, "/refusals") {
		return errors.New("403: token=" + marker)
	}
	answer := `{"path": "` + path + `", "password": "` + marker + `", "incomplete": ["replica-1: no answer"]}`
	return json.Unmarshal([]byte(answer), into)
}

func dump(t *testing.T, s connect.Source, o Options) map[string]string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(t.Context(), &out, s, o); err != nil {
		t.Fatal(err)
	}
	compressed, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		data, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		files[h.Name] = string(data)
	}
}

func TestWrite(t *testing.T) {
	files := dump(t, source{}, Options{Logs: true, Now: time.Unix(0, 0), Version: "v1.2.3"})
	all := ""
	for name, text := range files {
		all += text
		if strings.Contains(text, marker) {
			t.Errorf("%s contains a secret:\n%s", name, text)
		}
	}
	for _, want := range []string{
		"v1.2.3", "kept-reference", "kept-volume", "kept-env", "kept-region", "kept-realm", "team: voice",
		"/api/v1/operator", "/api/v1/gateways/media/turn/status", "Node: forbidden", "replica-1: no answer",
		"media/turn: refusals: 403",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no file contains %q", want)
		}
	}
	for _, want := range []string{
		"sysdump/objects/media/pod/app.yaml", "sysdump/objects/media/gatewayconfig.stunner.l7mp.io/inline.yaml",
		"sysdump/gateways/media/turn/sessions.json", "sysdump/operator.json", "sysdump/problems.txt",
	} {
		if _, ok := files[want]; !ok {
			t.Errorf("no file %s", want)
		}
	}
}

func TestText(t *testing.T) {
	for _, secret := range []string{
		"level=info password=" + marker, `{"token": "` + marker + `"}`, "secret: '" + marker + "'",
		"STUNNER_PASSWORD=" + marker + " next", "--shared-secret " + "=" + marker,
		"authorization: bearer " + marker,
		"Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0." + marker,
		"-----BEGIN EC PRIVATE KEY-----\n" + marker + "\n-----END EC PRIVATE KEY-----",
		"-----BEGIN PRIVATE KEY-----\n" + marker, // cut off
		"turn:// and https://user:" + marker + "@example.com/x",
	} {
		if got := Text(secret); strings.Contains(got, marker) || !strings.Contains(got, redacted) {
			t.Errorf("%q becomes %q", secret, got)
		}
	}
	for _, harmless := range []string{
		"listener media/turn/udp on 3478", "token bucket is full", "the Secret media/keys does not exist",
		"turn:203.0.113.1:3478?transport=udp", "revision 3f2a91c04b7d", "the bearer is invalid",
		"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
	} {
		if got := Text(harmless); got != harmless {
			t.Errorf("%q becomes %q", harmless, got)
		}
	}
}
