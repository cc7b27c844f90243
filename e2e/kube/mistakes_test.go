package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// mistake is an invalid or missing object, in a namespace with a Gateway, a class and all that they need.
type mistake struct {
	name string
	make func(*faulty)
	// seen waits until the operator has processed the mistake. Nil means that the status of the Gateway reports that
	// the published config stays in force.
	seen func(*faulty)
	// takes means that the mistake removes the media server from the config, but nothing else.
	takes bool
}

var mistakes = []mistake{
	{name: "secret-emptied", make: func(p *faulty) { p.set("secret/users", `{"data":null}`) }},
	{name: "secret-deleted", make: func(p *faulty) { p.remove("secret/users") }},
	{name: "secret-of-unknown-type", make: func(p *faulty) { p.set("secret/users", `{"stringData":{"type":"magic"}}`) }},
	{name: "secret-without-password", make: func(p *faulty) { p.set("secret/users", `{"data":{"password":null}}`) }},
	{name: "config-deleted", make: func(p *faulty) { p.remove("gatewayconfig/site") }},
	{name: "config-names-no-dataplane", make: func(p *faulty) {
		p.set("gatewayconfig/site", `{"spec":{"dataplane":"`+p.name+`-absent"}}`)
	}},
	{name: "class-names-no-config", make: func(p *faulty) {
		p.set("gatewayclass/"+p.name, `{"spec":{"parametersRef":{"name":"absent"}}}`)
	}},
	{name: "class-deleted", make: func(p *faulty) { p.remove("gatewayclass/" + p.name) }, seen: func(*faulty) {}},
	{name: "class-misspelt", make: func(p *faulty) {
		p.set("gateway/door", `{"spec":{"gatewayClassName":"misspelt"}}`)
	}, seen: func(*faulty) {}},
	{name: "dataplane-deleted", make: func(p *faulty) { p.remove("dataplane/" + p.name) }},
	{name: "dataplane-invalid", make: func(p *faulty) {
		p.set("dataplane/"+p.name, `{"spec":{"podTemplatePatch":{"spec":{"containers":"none"}}}}`)
	}},
	{name: "own-config-absent", make: func(p *faulty) {
		p.set("gateway/door", `{"spec":{"infrastructure":{"parametersRef":
			{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":"absent"}}}}`)
	}},
	{name: "annotation-invalid", make: func(p *faulty) {
		p.annotate("gateway/door", "stunner.l7mp.io/targetport", "nonsense")
	}},
	{name: "certificate-deleted", make: func(p *faulty) { p.remove("secret/door") }, seen: listenerHeld("tls")},
	{name: "certificate-broken", make: func(p *faulty) {
		p.set("secret/door", `{"stringData":{"tls.crt":"none"}}`)
	}, seen: listenerHeld("tls")},
	{name: "listener-protocol", make: func(p *faulty) {
		p.patch("gateway/door", types.JSONPatchType,
			`[{"op":"replace","path":"/spec/listeners/1/protocol","value":"TURN-TPC"}]`)
	}, seen: listenerHeld("tcp")},
	{name: "listener-port-taken", make: func(p *faulty) {
		p.patch("gateway/door", types.JSONPatchType, `[{"op":"replace","path":"/spec/listeners/2/port","value":3478}]`)
	}, seen: listenerHeld("tls")},
	{name: "backend-deleted", make: func(p *faulty) { p.remove("endpointslice/rooms", "service/rooms") }, takes: true,
		seen: routeFails("ResolvedRefs")},
	{name: "route-names-no-backend", make: func(p *faulty) {
		p.set("udproute.stunner.l7mp.io/media", `{"spec":{"rules":[{"backendRefs":[{"name":"absent"}]}]}}`)
	}, takes: true,
		seen: routeFails("ResolvedRefs")},
	{
		name: "namespace-loses-route-label", takes: true,
		make: func(p *faulty) { p.label("namespace/"+p.name, "media", "") },
		seen: routeFails("Accepted"),
	},
}

// routeFails returns a function that waits until a condition of the route is False.
func routeFails(condition string) func(*faulty) {
	path := `.status.parents[0].conditions[?(@.type=="` + condition + `")].status`
	return func(p *faulty) { p.sees("udproute.stunner.l7mp.io/media", path, "False") }
}

// listenerHeld returns a function that waits until the status reports that a listener keeps its published config.
func listenerHeld(name string) func(*faulty) {
	return func(p *faulty) {
		p.await(func(ctx context.Context) error {
			path := `.status.listeners[?(@.name=="` + name + `")].conditions[?(@.type=="Programmed")].message`
			got, err := control.Field(ctx, p.name, "gateway/door", path)
			if err == nil && !strings.Contains(got, "what was published before stays in force") {
				err = fmt.Errorf("listener %s: message %q", name, got)
			}
			return err
		})
	}
}

// promises waits until the status of the Gateway reports that the published config stays in force.
func (p *faulty) promises(when string) {
	p.await(func(ctx context.Context) error {
		got, err := control.Field(ctx, p.name, "gateway/door", `.status.conditions[?(@.type=="Programmed")].message`)
		if err == nil && !strings.Contains(got, "what was published before stays in force") {
			err = fmt.Errorf("%s, %s: message %q", when, p.mistake.name, got)
		}
		return err
	})
}

// faulty is a Gateway with a mistake, in a namespace of its own.
type faulty struct {
	*installation
	mistake mistake
	// given are the credentials that the auth service returned before the mistake, made the generated objects, and
	// config the revision and the endpoints.
	given, made, config string
}

// objects returns the objects of the Gateway. Routes need the label of the namespace.
func (p *faulty) objects() string {
	p.Helper()
	chain, private, err := harness.Certificate()
	p.must(err)
	return strings.NewReplacer("NAMESPACE", p.name, "CONTROLLER", p.controller()).Replace(`
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE, labels: {media: any}}
---
apiVersion: v1
kind: Secret
metadata: {name: users}
stringData: {type: static, username: caller, password: password-of-NAMESPACE}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: site}
spec: {dataplane: NAMESPACE, authRef: {name: users}}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: NAMESPACE}
spec: {}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NAMESPACE}
spec:
  controllerName: CONTROLLER
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: site, namespace: NAMESPACE}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door}
spec:
  gatewayClassName: NAMESPACE
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - name: udp
    port: 3478
    protocol: TURN-UDP
    allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {media: any}}}}
  - {name: tcp, port: 3478, protocol: TURN-TCP}
  - {name: tls, port: 5349, protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: media}
spec: {parentRefs: [{name: door, sectionName: udp}], rules: [{backendRefs: [{name: rooms}]}]}
`+rooms) + fmt.Sprintf(`
---
apiVersion: v1
kind: Secret
metadata: {name: door}
type: kubernetes.io/tls
stringData: {tls.crt: %q, tls.key: %q}
`, chain, private)
}

// R-10, L-3: a mistake removes nothing, whether operator and auth service continue to run, or one or both of them are
// restarted: no config is withdrawn or changed, no object is deleted or changed, and the auth service returns the same
// credentials as before.
func TestMistakesDeleteNothingAcrossRestarts(t *testing.T) {
	t.Parallel()
	g := guarded{prepare(t, t.TempDir(), nameOf(t)), t.TempDir()}
	g.accounts("auth", "whole")
	g.must(harness.Build(t.Context(), harnesstest.Root(t), g.dir, harness.Auth))
	places, namespaces := []*faulty(nil), []string{g.name}
	for _, m := range mistakes {
		own := *g.installation
		own.name = "mistake-" + m.name
		p := &faulty{installation: &own, mistake: m}
		places, namespaces = append(places, p), append(namespaces, p.name)
		p.apply(p.objects())
	}
	operator := []string{
		"--watch-namespaces=" + strings.Join(namespaces, ","), "--discovery-auth=strict",
		"--discovery-readers=" + g.name + "/auth," + g.name + "/whole:whole",
	}
	g.launch(operator...)
	g.awaitReady()
	a := newAuth(g)
	a.start()
	whole := g.token("whole", "--audience=stunner-discovery")
	for _, p := range places {
		p.await(func(ctx context.Context) (err error) { p.given, err = a.credentials(ctx, p.name); return err })
		for _, object := range []string{"service/door", "service/door-tcp", "deployment/door", "configmap/door"} {
			p.sees(object, ".metadata.name", object[strings.Index(object, "/")+1:])
		}
		p.sees("secret/door-standby", ".type", "stunner.l7mp.io/standby-config")
		p.sees("gateway/door", ".status.conditions[0].type", "Accepted")
		p.await(func(ctx context.Context) error { return p.settles(ctx, g, whole) })
		p.made = p.generated()
	}
	g.await(g.standbyWritten(places))
	for _, p := range places {
		p.mistake.make(p)
	}
	check := func(when string) {
		t.Helper()
		for _, p := range places {
			if p.mistake.seen != nil {
				p.mistake.seen(p)
			} else {
				p.promises(when)
			}
			now, err := p.state(g, whole)
			_, before, _ := strings.Cut(p.config, ": ")
			if p.mistake.takes {
				_, now, _ = strings.Cut(now, ": ")
				if want := strings.ReplaceAll(before, ", 198.51.100.21", ""); err != nil || now != want {
					t.Errorf("%s, %s: %s, %v, want %s", when, p.mistake.name, now, err, want)
				}
			} else if err != nil || now != p.config {
				t.Errorf("%s, %s: %s, %v, want %s", when, p.mistake.name, now, err, p.config)
			}
			if now := p.generated(); now != p.made {
				t.Errorf("%s, %s: objects\n%s\nwant\n%s", when, p.mistake.name, now, p.made)
			}
			p.await(func(ctx context.Context) error {
				now, err := a.credentials(ctx, p.name)
				if err == nil && now != p.given {
					t.Errorf("%s, %s: credentials %s, want %s", when, p.mistake.name, now, p.given)
				}
				return err
			})
		}
	}
	check("no restart")
	a.restart()
	check("auth service restarted")
	g.stop()
	g.launch(operator...)
	g.awaitReady()
	g.leads()
	check("operator restarted")
	g.stop()
	a.stop()
	g.launch(operator...)
	g.awaitReady()
	a.start()
	g.leads()
	check("both restarted")
}

// settles reads the published config. It returns nil if the config is complete and the standby Secret has it. The
// config may change while the objects of the Gateway are written.
func (p *faulty) settles(ctx context.Context, g guarded, token string) (err error) {
	p.Helper()
	if p.config, err = p.state(g, token); err == nil && !strings.Contains(p.config, "3 listeners, 198.51.100.21") {
		err = fmt.Errorf("%s has %s", p.name, p.config)
	}
	return errors.Join(err, g.standbyWritten([]*faulty{p})(ctx))
}

// standbyWritten returns a condition: the standby Secrets have the published endpoints, which are written with a delay.
func (g guarded) standbyWritten(places []*faulty) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, p := range places {
			s, err := g.client().CoreV1().Secrets(p.name).Get(ctx, "door-standby", metav1.GetOptions{})
			if err != nil {
				return err
			}
			c, _, err := config.Unpack(s.Data["stunnerd.conf.gz"])
			if err != nil {
				return err
			}
			if revision, _, _ := strings.Cut(p.config, ":"); c.Revision() != revision {
				return fmt.Errorf("the standby Secret of %s has %s, want %s", p.name, c.Revision(), revision)
			}
		}
		return nil
	}
}

// state returns the published config of the Gateway as REVISION: LISTENERS, ENDPOINTS.
func (p *faulty) state(g guarded, token string) (string, error) {
	p.Helper()
	code, body, err := p.ask(g, token)
	if err != nil || code != http.StatusOK {
		return "", fmt.Errorf("config of %s: %d %s, %v", p.name, code, body, err)
	}
	c, _, err := config.Parse([]byte(body))
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("%s: %d listeners", c.Revision(), len(c.Listeners))
	for _, cluster := range c.Clusters {
		if slices.Contains(c.Listeners[0].Routes, cluster.Name) && len(cluster.Endpoints) > 0 {
			text += ", " + strings.Join(cluster.Endpoints, " ")
		}
	}
	return text, nil
}

func (p *faulty) ask(g guarded, token string) (code int, body string, err error) {
	p.Helper()
	return g.ask("https", token, "/"+p.name+"/door")
}

// generated returns the names, UIDs and generations of the objects that the operator created for the Gateway.
func (p *faulty) generated() (all string) {
	p.Helper()
	selector := metav1.ListOptions{LabelSelector: "stunner.l7mp.io/related-gateway-name=door"}
	c := p.client()
	deployments, err := c.AppsV1().Deployments(p.name).List(p.Context(), selector)
	services, err2 := c.CoreV1().Services(p.name).List(p.Context(), selector)
	maps, err3 := c.CoreV1().ConfigMaps(p.name).List(p.Context(), selector)
	secrets, err4 := c.CoreV1().Secrets(p.name).List(p.Context(), selector)
	p.must(errors.Join(err, err2, err3, err4))
	for _, o := range deployments.Items {
		all += fmt.Sprintf("Deployment %s %s %d\n", o.Name, o.UID, o.Generation)
	}
	for _, o := range services.Items {
		all += fmt.Sprintf("Service %s %s %v\n", o.Name, o.UID, portsOf(o))
	}
	for _, o := range maps.Items {
		all += fmt.Sprintf("ConfigMap %s %s\n", o.Name, o.UID)
	}
	for _, o := range secrets.Items {
		all += fmt.Sprintf("Secret %s %s\n", o.Name, o.UID)
	}
	return all
}

func portsOf(s corev1.Service) (ports []string) {
	for _, port := range s.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%s %d %s", port.Name, port.Port, port.TargetPort.String()))
	}
	return ports
}

// auth is an auth service that reads the configs of an operator with authentication.
type auth struct {
	guarded
	address, health, token, ca string
	process                    *harness.Process
}

func newAuth(g guarded) *auth {
	g.Helper()
	a := &auth{guarded: g, address: harnesstest.Address(g.T), health: harnesstest.Address(g.T),
		token: filepath.Join(g.files, "token"), ca: filepath.Join(g.files, "ca.crt")}
	g.must(os.WriteFile(a.token, []byte(g.token("auth", "--audience=stunner-discovery")), 0o600))
	g.await(func(context.Context) error {
		if g.bundle() == "" {
			return errors.New("the ConfigMap of the Gateway has no CA certificate yet")
		}
		return nil
	})
	g.must(os.WriteFile(a.ca, []byte(g.bundle()), 0o600))
	return a
}

// start starts the auth service and waits until it is ready.
func (a *auth) start() {
	a.Helper()
	host, port, _ := strings.Cut(a.address, ":")
	a.process = harnesstest.Start(a.T, harness.Command{
		Name: "auth", Path: filepath.Join(a.dir, "auth"), Logs: a.dir,
		Args: []string{
			"--address=" + host, "--port=" + port, "--health-address=" + a.health,
			fmt.Sprintf("--config=https://localhost:%d", a.discovery), "--discovery-token-file=" + a.token,
			"--discovery-ca-file=" + a.ca,
		},
	}, harness.Answers("http://"+a.health+"/ready", http.StatusOK))
}

func (a *auth) stop() {
	a.Helper()
	a.must(a.process.Kill())
}

func (a *auth) restart() {
	a.Helper()
	a.stop()
	a.start()
}

// credentials returns username and password of the answer for the Gateway of a namespace.
func (a *auth) credentials(ctx context.Context, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, body, err := harness.Get(ctx, "http://"+a.address+"/?service=turn&namespace="+namespace+"&gateway=door")
	if err != nil || code != http.StatusOK {
		return "", fmt.Errorf("credentials of %s: %d %s, %v", namespace, code, body, err)
	}
	var answer struct{ Username, Password string }
	err = json.Unmarshal(body, &answer)
	if err == nil && answer.Password != "password-of-"+namespace {
		err = fmt.Errorf("credentials of %s: %s", namespace, body)
	}
	return answer.Username + " " + answer.Password, err
}
