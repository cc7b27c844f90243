package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
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
    settings: '{\"password\":\"PLANTED-MARKER\"}'
spec: {sharedSecret: PLANTED-MARKER, password: PLANTED-MARKER, authRef: {name: kept-reference}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: media, labels: {app: stunner-auth}}
spec:
  nodeName: node-1
  volumes: [{name: v, secret: {secretName: kept-volume}}]
  containers:
    - name: app
      command: [sh, -c, "exec app --password PLANTED-MARKER --realm kept-realm"]
      args: ["--auth-secret=PLANTED-MARKER", "--realm=kept-realm", "turn://user:PLANTED-MARKER@203.0.113.1:3478",
        "--api-key", "PLANTED-MARKER", "--token-file", "/kept-file", "postgres://user:PLANTED-MARKER@db/x", "-secret", "PLANTED-MARKER",
        "https://PLANTED-MARKER@sentry.example.org/1", "--access-key=PLANTED-MARKER"]
      env:
        - {name: TURN_PASSWORD, value: PLANTED-MARKER}
        - {name: API_KEY, value: PLANTED-MARKER}
        - {name: CREDS, value: PLANTED-MARKER}
        - {name: MyCred, value: PLANTED-MARKER}
        - {name: db_pass, value: PLANTED-MARKER}
        - {name: PGPWD, value: PLANTED-MARKER}
        - {name: SIGNING_KEYS, value: PLANTED-MARKER}
        - {name: CREDS_V2, value: PLANTED-MARKER}
        - {name: SENTRY_DSN, value: PLANTED-MARKER}
        - {name: STUNNER_OPERATOR_DISCOVERY_AUTH, value: kept-setting}
        - {name: AWS_SECRET_ACCESS_KEY, value: PLANTED-MARKER}
        - {name: DATABASE_URL, value: "postgres://user:PLANTED-MARKER@db/x"}
        - {name: REGION, value: kept-region}
        - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: kept-env, key: x}}}
`, `
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: turn}, spec: {controllerName: stunner.l7mp.io/x}}
`, `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: front, namespace: media}, spec: {gatewayClassName: turn}}
`, `
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media, namespace: media}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: sfu, namespace: rooms}]}]}
`, `
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: UDPRoute
metadata: {name: media, namespace: media, annotations: {note: kept-second-route}}
spec: {parentRefs: [{name: front}]}
`, `
{apiVersion: v1, kind: Service, metadata: {name: sfu, namespace: rooms}, spec: {selector: {note: kept-backend}}}
`, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sfu-1, namespace: rooms, labels: {kubernetes.io/service-name: sfu, note: kept-slice}}
`, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: all, namespace: media, annotations: {note: kept-policy}}
spec: {podSelector: {matchLabels: {app: stunner-auth}}}
`, `
{apiVersion: v1, kind: Node, metadata: {name: node-1, annotations: {note: kept-node}}}
`, `
{apiVersion: v1, kind: Namespace, metadata: {name: rooms, annotations: {note: kept-namespace}}}
`, `
apiVersion: v1
kind: Event
metadata: {name: app.1, namespace: media}
message: kept-event
involvedObject: {kind: Pod, namespace: media, name: app}
`}

// foreign are objects to which no Gateway of STUNner leads.
var foreign = []string{`
{apiVersion: v1, kind: Pod, metadata: {name: sfu-x, namespace: rooms, labels: {app: sfu}}, spec: {note: PLANTED-MARKER}}
`, `
{apiVersion: v1, kind: Service, metadata: {name: shop, namespace: media}, spec: {note: PLANTED-MARKER}}
`, `
{apiVersion: apps/v1, kind: Deployment, metadata: {name: shop, namespace: shop}, spec: {note: PLANTED-MARKER}}
`, `
apiVersion: v1
kind: Event
metadata: {name: shop.1, namespace: shop}
message: PLANTED-MARKER
involvedObject: {kind: Pod, namespace: shop, name: shop}
`, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sfu-2, namespace: shop, labels: {kubernetes.io/service-name: sfu, note: PLANTED-MARKER}}
`, `
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: web}, spec: {controllerName: PLANTED-MARKER}}
`, `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: PLANTED-MARKER, namespace: media}, spec: {gatewayClassName: web}}
`, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shop, namespace: media, annotations: {note: PLANTED-MARKER}}
spec: {podSelector: {matchLabels: {app: shop}}}
`, `
{apiVersion: v1, kind: Node, metadata: {name: PLANTED-MARKER}}
`, `
{apiVersion: v1, kind: Namespace, metadata: {name: PLANTED-MARKER}}
`, `
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: PLANTED-MARKER}, spec: {group: shop.example.org}}
`, `
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: PLANTED-MARKER, namespace: shop}}
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
	for _, text := range slices.Concat(planted, foreign) {
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
	answer := `{"path": "` + path + `", "password": "` + marker + `", "user": "PLANTED-MARKER-ada", "incomplete": ["replica-1: no answer"]}`
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
	content, err := io.ReadAll(compressed)
	if err != nil {
		t.Fatal(err)
	}
	if len(content)%512 != 0 || !bytes.HasSuffix(content, make([]byte, 1024)) {
		t.Errorf("the tar file of %d bytes does not end with two blocks of zeros", len(content))
	}
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
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

func stunner(controller string) bool { return strings.HasPrefix(controller, "stunner.l7mp.io/") }

func TestWrite(t *testing.T) {
	files := dump(t, source{}, Options{Logs: true, Now: time.Unix(0, 0), Version: "v1.2.3", Controls: stunner})
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
		"media/turn: refusals: 403", "kept-file", "kept-second-route", "kept-backend", "kept-slice", "kept-policy", "kept-node",
		"kept-namespace", "kept-event", "kept-setting",
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
		"STUNNER_PASSWORD=" + marker + " next", "CREDS=" + marker + " app", "creds: " + marker, "--shared-secret " + "=" + marker,
		"authorization: bearer " + marker,
		"Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0." + marker,
		"-----BEGIN EC PRIVATE KEY-----\n" + marker + "\n-----END EC PRIVATE KEY-----",
		"-----BEGIN PRIVATE KEY-----\n" + marker, // cut off
		"turn:// and https://user:" + marker + "@example.com/x", "dial postgres://user:" + marker + "@db:5432/x: refused",
		"run app --password " + marker + " -v", `{\"token\":\"` + marker + `\"}`, "authorization: Basic " + marker,
	} {
		if got := Text(secret); strings.Contains(got, marker) || !strings.Contains(got, redacted) {
			t.Errorf("%q becomes %q", secret, got)
		}
	}
	for _, harmless := range []string{
		"listener media/turn/udp on 3478", "token bucket is full", "the Secret media/keys does not exist",
		"turn:203.0.113.1:3478?transport=udp", "revision 3f2a91c04b7d", "the bearer is invalid",
		"--auth-token-file /run/token", "kubectl -n media get pods", "https://example.com/a@b",
		"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
	} {
		if got := Text(harmless); got != harmless {
			t.Errorf("%q becomes %q", harmless, got)
		}
	}
}

// Logs contain the hashes of users and clients, the same for the same user in all forms.
func TestLog(t *testing.T) {
	p := newPrivacy()
	ada, client := p.hash("ada"), p.hash("203.0.113.7")
	for line, want := range map[string]string{
		`msg="gave credential" gateway=a/b subject="ada" user=ada source=203.0.113.7`: `msg="gave credential" gateway=a/b subject="` +
			ada + `" user=` + ada + ` source=` + client,
		`{"msg":"gave credential","user":"ada","source":"203.0.113.7"}`:      `{"msg":"gave credential","user":"` + ada + `","source":"` + client + `"}`,
		`target="/sessions?user=ada&client=203.0.113.7" caller=ada`:          `target="/sessions?user=` + ada + `&client=` + client + `" caller=` + ada,
		`{"client":"203.0.113.7:4000","user":{"id":7},"a":1}`:                `{"client":"` + client + `","user":{"id":7},"a":1}`,
		`msg=handshake client=[2001:db8::7]:4000`:                            `msg=handshake client=` + p.hash("2001:db8::7"),
		`msg=handshake client=203.0.113.7:40000 error=EOF`:                   `msg=handshake client=` + client + ` error=EOF`,
		`msg="config source lost" source="https://operator:13478" error=x`:   `msg="config source lost" source="https://operator:13478" error=x`,
		`msg="sessions ended" user=0123456789ab sessions=2`:                  `msg="sessions ended" user=0123456789ab sessions=2`,
		`msg="user of the GatewayConfig" superuser=x clients=4 listener=a/b`: `msg="user of the GatewayConfig" superuser=x clients=4 listener=a/b`,
	} {
		if got := p.Log(line); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if newPrivacy().hash("ada") == ada {
		t.Error("two archives have the same hash")
	}
}
