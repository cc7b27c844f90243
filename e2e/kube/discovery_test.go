package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// marker is the shared secret in the quickstart.
const marker = "quickstart-only-choose-your-own"

// guarded is an installation with readers of configs: the pod "dataplane" of Gateway front-door, the pod "neighbour" of
// another Gateway, the account "auth", which may read all configs, and the account "unauthorized".
type guarded struct {
	*installation
	files string // folder of the projected volume of the pod "dataplane"
}

// guard returns an installation with a mode of --discovery-auth.
func guard(t *testing.T, auth string) guarded {
	t.Helper()
	g := guarded{prepare(t, t.TempDir(), nameOf(t)), t.TempDir()}
	g.accounts("auth", "whole", "dataplane", "unauthorized")
	g.pod("dataplane", "front-door")
	g.pod("neighbour", "back-door")
	g.start("--discovery-auth="+auth, "--discovery-readers="+g.name+"/auth,"+g.name+"/whole:whole")
	g.Cleanup(g.nothingForbidden(time.Now()))
	return g
}

// pod creates a pod of a Gateway.
func (s *installation) pod(name, gateway string) {
	s.Helper()
	s.accounts("dataplane")
	s.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {app: stunner, stunner.l7mp.io/related-gateway-name: %s, stunner.l7mp.io/related-gateway-namespace: %s}
spec:
  nodeName: worker
  terminationGracePeriodSeconds: 0
  serviceAccountName: dataplane
  containers: [{name: stunner-daemon, image: example.net/stunnerd}]
`, name, gateway, s.name))
}

// podToken returns the token that a kubelet would mount into a pod.
func (g guarded) podToken(pod string) string {
	g.Helper()
	return g.token("dataplane", "--audience=stunner-discovery", "--bound-object-kind=Pod", "--bound-object-name="+pod)
}

// bundle returns the CA bundle that a kubelet would mount as ca.crt.
func (g guarded) bundle() string {
	g.Helper()
	return g.get("configmap/front-door", `.data.discovery-ca\.crt`)
}

// mount writes the files of the projected volume of the pod "dataplane".
func (g guarded) mount() (token, ca string) {
	g.Helper()
	token, ca = filepath.Join(g.files, "token"), filepath.Join(g.files, "ca.crt")
	g.await(func(context.Context) error {
		if g.bundle() == "" {
			return errors.New("the ConfigMap of the Gateway has no CA certificate yet")
		}
		return nil
	})
	g.must(os.WriteFile(token, []byte(g.podToken("dataplane")), 0o600))
	g.must(os.WriteFile(ca, []byte(g.bundle()), 0o600))
	return token, ca
}

// ask sends a GET request for configs with a bearer token.
func (g guarded) ask(scheme, token, path string) (code int, body string, err error) {
	g.Helper()
	return g.send(http.MethodGet, scheme, token, "/api/v1/configs"+path)
}

// send sends a request to the operator with a bearer token. It verifies the server by the name of the Service and the
// CA in the ConfigMap.
func (g guarded) send(method, scheme, token, path string) (code int, body string, err error) {
	g.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(g.bundle()))
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", g.discovery))
		},
	}}
	url := fmt.Sprintf("%s://stunner-config-discovery.%s.svc:13478%s", scheme, g.name, path)
	request, err := http.NewRequestWithContext(g.Context(), method, url, nil)
	g.must(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// K-01: over TLS and with a token, a dataplane pod reads the config of its Gateway, and an authorized account reads all
// configs. Other requests get 401 or 403. Dataplane settings are visible only to the pod and to readers with access to
// full configs.
func TestDiscoveryAuthorizesReaders(t *testing.T) {
	t.Parallel()
	g := guard(t, "strict")
	ours, all := "/"+g.name+"/front-door", ""
	reader, whole, pod := g.token("auth", "--audience=stunner-discovery"), g.token(
		"whole", "--audience=stunner-discovery",
	), g.podToken("dataplane")
	g.pod("gone", "front-door")
	gone := g.podToken("gone")
	g.remove("pod/gone")
	token, ca := g.mount()
	for _, c := range []struct {
		who, token, path string
		want             int
	}{
		{"nobody", "", ours, 401},
		{"an invention", "made.up.token", ours, 401},
		{"a token for another audience", g.token("auth"), ours, 401},
		{"a pod with its default token", g.token(
			"dataplane", "--bound-object-kind=Pod", "--bound-object-name=dataplane",
		), ours, 401},
		{"a deleted pod", gone, ours, 401},
		{"a reader", reader, all, 200},
		{"a reader", reader, ours, 200},
		{"a reader of whole configs", whole, all, 200},
		{"a reader of whole configs", whole, ours, 200},
		{"a dataplane", pod, ours, 200},
		{"a dataplane", pod, all, 403},
		{"a dataplane", pod, "/" + g.name, 403},
		{"a dataplane", pod, "/" + g.name + "/back-door", 403},
		{"a dataplane of another Gateway", g.podToken("neighbour"), ours, 403},
		{"another account", g.token("unauthorized", "--audience=stunner-discovery"), ours, 403},
		{"an account without its pod", g.token("dataplane", "--audience=stunner-discovery"), ours, 403},
	} {
		for _, path := range []string{c.path, c.path + "?watch=true"} {
			code, body, err := g.ask("https", c.token, path)
			want := c.want
			if want == 200 && path != c.path {
				want = http.StatusUpgradeRequired // authorized, but not a WebSocket request
			}
			if err != nil || code != want {
				t.Errorf("%s, %q: status %d, %v, want %d", c.who, path, code, err, want)
			}
			if strings.Contains(body, marker) != (code == 200) {
				t.Errorf("%s, %q: status %d with\n%s", c.who, path, code, body)
			}
			if settings := strings.Contains(
				body, config.AddressPlaceholder,
			); settings != (code == 200 && c.token != reader) {
				t.Errorf("%s, %q: relay address visible: %t", c.who, path, settings)
			}
		}
	}
	if code, body, err := g.ask("http", pod, ours); err == nil && code != 400 || strings.Contains(body, marker) {
		t.Errorf("plain HTTP: status %d: %s", code, body)
	}
	refused := g.metric("stunner_operator_discovery_refused_total")
	if refused == 0 {
		t.Error("the metric counts no refused request")
	}

	// A report of a dataplane about another pod is rejected, and its connection continues.
	id := g.name + "/front-door"
	source := g.source("wss://127.0.0.1:%d", discovery.Options{ID: id, TokenFile: token, CAFile: ca})
	ctx, cancel := context.WithCancel(t.Context())
	events := source.Watch(ctx)
	for e := range events {
		if e.ID != "" {
			break
		}
	}
	source.(discovery.Reporter).Report(discovery.Report{ID: id, Pod: "neighbour", Accepted: true})
	g.await(func(context.Context) error {
		if n := g.metric("stunner_operator_discovery_refused_total"); n != refused+1 {
			return fmt.Errorf("%.0f refusals, want %.0f", n, refused+1)
		}
		return nil
	})
	if n := g.metric("stunner_operator_discovery_streams"); n != 1 {
		t.Errorf("%.0f streams, want 1", n)
	}
	cancel()
	for range events {
	}
}

// K-01: a dataplane with the files of its projected volume follows its config over TLS.
// It is not affected when the Secret of the CA is deleted or damaged; the operator restores the Secret. After a change
// of the CA it reconnects when the kubelet has updated the mounted file.
func TestDataplaneTrustsTheOperator(t *testing.T) {
	t.Parallel()
	g := guard(t, "strict")
	g.set("dataplane/"+g.name, `{"spec":{"disableHealthCheck":true,"enableMetricsEndpoint":false}}`)
	port := harnesstest.Port(t)
	g.annotate("gateway/front-door", "stunner.l7mp.io/targetport", fmt.Sprintf(`{"udp":%d,"tcp":%[1]d}`, port))
	g.sees(
		"deployment/front-door",
		`.spec.template.spec.volumes[?(@.name=="discovery")].projected.sources[0].serviceAccountToken.audience`,
		"stunner-discovery",
	)
	token, ca := g.mount()
	dataplane := harnesstest.Start(t, harness.Command{
		Name: "stunnerd", Path: filepath.Join(harnesstest.Build(t, harness.Stunnerd), "stunnerd"),
		Args: []string{"-w", "--healthcheck-endpoint=none"},
		Logs: g.dir,
		Env: []string{
			"STUNNER_NAMESPACE=" + g.name, "STUNNER_NAME=front-door", "STUNNER_POD=dataplane", "STUNNER_ADDR=127.0.0.1",
			fmt.Sprintf("STUNNER_CONFIG_ORIGIN=https://localhost:%d", g.discovery),
			"STUNNER_DISCOVERY_TOKEN_FILE=" + token, "STUNNER_DISCOVERY_CA_FILE=" + ca,
		},
	}, func(context.Context) error { return nil })
	// follows checks that the dataplane runs the config that the operator serves after a change.
	follows := func(realm string) {
		t.Helper()
		g.set("gatewayconfig/"+g.name, `{"spec":{"realm":"`+realm+`"}}`)
		g.await(func(ctx context.Context) error {
			_, body, err := g.ask("https", g.podToken("dataplane"), "/"+g.name+"/front-door")
			if err != nil || !strings.Contains(body, realm) {
				return fmt.Errorf("the operator does not serve %s yet: %v", realm, err)
			}
			c, _, err := config.Parse([]byte(body))
			g.must(err)
			if !strings.Contains(dataplane.Output(), "revision="+c.Revision()) {
				return fmt.Errorf("the dataplane does not run %s yet", c.Revision())
			}
			return nil
		})
	}
	follows("one.example.net")
	generation, bundle := g.get("deployment/front-door", ".metadata.generation"), g.bundle()
	stored := func() string { return g.get("secret/stunner-discovery-ca", `.data.ca\.key`) }
	key := stored()
	for name, harm := range map[string]func(){
		"deleted": func() { g.remove("secret/stunner-discovery-ca") },
		"damaged": func() { g.set("secret/stunner-discovery-ca", `{"data":{"ca.key":null}}`) },
	} {
		harm()
		g.await(func(context.Context) error {
			if stored() != key {
				return fmt.Errorf("the Secret was %s and has not been restored", name)
			}
			return nil
		})
	}
	follows("two.example.net")
	if n := strings.Count(dataplane.Output(), "config source connected"); n != 1 {
		t.Errorf("the dataplane has connected %d times, want once", n)
	}
	g.stop()
	g.remove("secret/stunner-discovery-ca")
	g.start("--discovery-auth=strict", "--discovery-readers="+g.name+"/auth")
	g.await(func(context.Context) error {
		if g.bundle() == bundle {
			return errors.New("the ConfigMap has the previous CA certificates")
		}
		return nil
	})
	g.mount()
	follows("three.example.net")
	if now := g.get("deployment/front-door", ".metadata.generation"); now != generation {
		t.Errorf("the Deployment has generation %s, had %s: a new CA must not restart pods", now, generation)
	}
	if shown := g.get("configmap/stunner-discovery-ca", `.data.ca\.crt`); shown != g.bundle() {
		t.Errorf("the published bundle is %q, that of pods %q", shown, g.bundle())
	}
}

// source opens config discovery as stunnerd does.
func (g guarded) source(url string, o discovery.Options) discovery.Source {
	g.Helper()
	source, err := discovery.Open(fmt.Sprintf(url, g.discovery), o)
	g.must(err)
	return source
}

func (g guarded) firstEvent(source discovery.Source) discovery.Event {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), timeout)
	defer cancel()
	for e := range source.Watch(ctx) {
		if e.ID != "" {
			return e
		}
	}
	g.Fatalf("no event from %s", source)
	return discovery.Event{}
}

// K-01: in permissive mode, readers without a token get configs without secrets, over TLS and plain HTTP. Readers with
// a token get the data that it grants.
func TestPermissiveDiscoveryKeepsSecrets(t *testing.T) {
	t.Parallel()
	g := guard(t, "permissive")
	token, ca := g.mount()
	g.withTLS()
	ours := "/" + g.name + "/front-door"
	served := func() config.Config {
		_, body, err := g.ask("https", g.podToken("dataplane"), ours)
		g.must(err)
		c, _, err := config.Parse([]byte(body))
		g.must(err)
		return c
	}
	var whole config.Config
	g.await(func(context.Context) error {
		if whole = served(); len(whole.Listeners) != 3 {
			return fmt.Errorf("%d listeners, want 3", len(whole.Listeners))
		}
		return nil
	})
	secrets := []string{marker, string(whole.Listeners[2].Key)}
	if whole.Auth.Credentials[config.KeySecret] != marker || len(secrets[1]) < 100 {
		t.Fatalf("the config has no secrets: %q", secrets)
	}
	unauthorized := g.token("unauthorized", "--audience=stunner-discovery")
	for _, scheme := range []string{"http", "https"} {
		for _, who := range []string{"", "made.up.token", unauthorized, g.podToken("neighbour")} {
			for _, path := range []string{"", "/" + g.name, ours} {
				code, body, err := g.ask(scheme, who, path)
				if err != nil || code != 200 || !strings.Contains(body, `"name":"`+g.name+`/front-door"`) ||
					strings.Contains(body, "redacted") {
					t.Errorf("%s %q: %d, %v\n%s", scheme, path, code, err, body)
				}
				for _, secret := range secrets {
					if strings.Contains(body, secret) {
						t.Errorf("%s %q, token %.10q: the response contains a secret", scheme, path, who)
					}
				}
			}
		}
	}
	id := g.name + "/front-door"
	for _, url := range []string{"ws://127.0.0.1:%d", "wss://127.0.0.1:%d"} {
		// The operator may publish a new revision between the two requests, so they are repeated until they agree.
		g.await(func(context.Context) error {
			e := g.firstEvent(g.source(url, discovery.Options{ID: id, CAFile: ca, TokenFile: token}))
			if e.Err != nil || e.Config.Revision() != served().Revision() {
				return fmt.Errorf("%s with a token: %+v", url, e)
			}
			return nil
		})
		if e := g.firstEvent(g.source(url, discovery.Options{ID: id, CAFile: ca})); !errors.Is(
			e.Err, discovery.ErrRejected,
		) || !strings.Contains(e.Err.Error(), "token") {
			t.Errorf("%s without a token: %+v", url, e)
		}
	}
}

// With --discovery-auth=off, discovery uses plain HTTP without tokens, and neither pods nor ConfigMap contain settings
// for TLS or tokens.
func TestDiscoveryWithoutAuthIsPlain(t *testing.T) {
	t.Parallel()
	g := guarded{installation: newShared(t)}
	g.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	e := g.firstEvent(g.source("ws://127.0.0.1:%d", discovery.Options{ID: g.name + "/front-door", Node: "worker-1"}))
	if e.Err != nil || e.Config.Auth.Credentials[config.KeySecret] != marker {
		t.Errorf("a dataplane without credentials receives %+v", e)
	}
	for object, path := range map[string]string{
		"deployment/front-door":          `.spec.template.spec.volumes[?(@.name=="discovery")].name`,
		"configmap/front-door":           `.data.discovery-ca\.crt`,
		"secret/stunner-discovery-ca":    ".metadata.name",
		"configmap/stunner-discovery-ca": ".metadata.name",
	} {
		if got := g.get(object, path); got != "" {
			t.Errorf("%s has %s %q", object, path, got)
		}
	}
	if args := g.get(
		"deployment/front-door", `.spec.template.spec.containers[0].env[?(@.name=="STUNNER_CONFIG_ORIGIN")].value`,
	); !strings.HasPrefix(args, "http://") {
		t.Errorf("pods have the arguments %s", args)
	}
}

// In mode pod-address, a dataplane without token and TLS, as the existing system has it, follows the config of its
// Gateway. Nothing else has access without a token. Mode strict ends this access, and the dataplane keeps its config.
func TestDiscoveryByPodAddress(t *testing.T) {
	t.Parallel()
	g := guard(t, "pod-address")
	ours, theirs := "/"+g.name+"/front-door", "/"+g.name+"/back-door"
	place := func(pod, status string) {
		g.setStatus("pod/"+pod, status)
	}
	answers := func(scheme, path string, want int) {
		t.Helper()
		g.await(func(context.Context) error {
			code, body, err := g.ask(scheme, "", path)
			if err == nil && code != want {
				err = fmt.Errorf("%s %s: %d, want %d\n%s", scheme, path, code, want, body)
			}
			return err
		})
	}
	answers("http", ours, http.StatusUnauthorized)
	place("dataplane", `{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}`)
	for _, scheme := range []string{"http", "https"} {
		answers(scheme, ours, http.StatusOK)
		answers(scheme, theirs, http.StatusForbidden)
		answers(scheme, "", http.StatusForbidden)
	}
	if _, body, err := g.ask("http", "", ours); err != nil || !strings.Contains(body, marker) {
		t.Errorf("the config has no secret: %v\n%s", err, body)
	}
	if code, _, err := g.ask("http", "made.up.token", ours); code != http.StatusUnauthorized {
		t.Errorf("an invalid token is answered with %d, %v", code, err)
	}

	r := g.reader("front-door")
	g.shows(r, "192.0.2.50")
	g.moveEcho("192.0.2.61")
	g.shows(r, "192.0.2.61")
	place("neighbour", `{"phase":"Running","podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}`)
	answers("http", ours, http.StatusUnauthorized) // two pods have the address
	place("neighbour", `{"phase":"Failed"}`)
	answers("http", ours, http.StatusOK)

	g.stop()
	g.start("--discovery-auth=strict")
	g.mount()
	if code, _, err := g.ask("http", "", ours); err == nil && code != http.StatusBadRequest {
		t.Errorf("after the change-over, plain HTTP is answered with %d", code)
	}
	answers("https", ours, http.StatusUnauthorized)
	if code, _, err := g.ask("https", g.podToken("dataplane"), ours); code != http.StatusOK {
		t.Errorf("after the change-over, a token is answered with %d, %v", code, err)
	}
	g.shows(r, "192.0.2.61")
}
