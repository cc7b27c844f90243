// Package guides runs the guides in docs/guides: the manifests, the configuration of media servers and the code of web
// apps are read from the pages.
//
// # Files
//
//	environment_test.go  networks, operator, dataplane and auth service, with the manifests of a page
//	output_test.go   the output of stunnerctl that a page shows
//	livekit_test.go  calls through LiveKit
//	game_test.go     a game server and its client
//	janus_test.go    Janus
//	pages_test.go    stunnerctl lint, flags of commands, and length of all pages
package guides

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// timeout limits the wait for a condition on a busy machine.
const timeout = 30 * time.Second

// Addresses: of the Gateway, of clients, and of the pod of the media server. Clients have no route to the pod.
const (
	publicAddress = "203.0.113.1"
	clientAddress = "203.0.113.2"
	podGateway    = "10.0.0.1"
	podAddress    = "10.0.0.2"
)

// environment has the product with the manifests of a guide. Operator, dataplane and auth service run in the network
// namespace of the test, clients in a second namespace, and the media server in a third namespace, which has only the
// address of its pod.
type environment struct {
	*testing.T
	page         guide.Page
	clients, pod *netns.Space
	bin          string
	in, out      string // folders of the operator
	authURL      string
}

// newEnvironment applies the manifests of a page. The test must be isolated (netns.Isolated). Host names of the Gateway
// in the page are replaced by its address.
func newEnvironment(t *testing.T, page guide.Page) *environment {
	t.Helper()
	p := &environment{
		T: t, page: page, clients: netns.New(t, "clients"), pod: netns.New(t, "pod"), in: t.TempDir(), out: t.TempDir(),
		bin: harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth, harness.Stunnerctl),
	}
	p.clients.Link(t, netip.MustParsePrefix(publicAddress+"/24"), netip.MustParsePrefix(clientAddress+"/24"))
	p.pod.Link(t, netip.MustParsePrefix(podGateway+"/24"), netip.MustParsePrefix(podAddress+"/24"))
	p.enforce()
	for name, text := range map[string]string{
		"page.yaml": page.Manifests(), "endpoints.yaml": p.endpoints(), "installed.yaml": installed(t),
	} {
		harnesstest.NoError(t, os.WriteFile(filepath.Join(p.in, name), []byte(text), 0o600))
	}
	discovery := harnesstest.Address(t)
	operator := p.start("operator",
		"--provider=file", "--input", p.in, "--output", p.out, "--stunnerd", filepath.Join(p.bin, "stunnerd"),
		"--address", publicAddress, "--discovery-address", discovery, "--child-lifetime", "bound", "--stop-grace", "1s",
	)
	t.Cleanup(func() {
		if err := operator.Stop(timeout); err != nil {
			t.Error(err)
		}
	})
	p.await(p.healthy)
	address, health := harnesstest.Address(t), harnesstest.Address(t)
	host, port, _ := strings.Cut(address, ":")
	p.start("auth", "--address", host, "--port", port, "--health-address", health, "--config", "http://"+discovery,
		"--discovery-token-file", filepath.Join(p.out, "discovery.token"), "--shutdown-delay", "0")
	p.await(harness.Answers("http://"+health+"/ready", http.StatusOK))
	p.authURL = "http://" + address
	return p
}

// start starts a program of the product until the test ends.
func (p *environment) start(name string, args ...string) *harness.Process {
	p.Helper()
	return harnesstest.Start(p, harness.Command{
		Name: name, Path: filepath.Join(p.bin, name), Args: args, Logs: p.TempDir(),
	}, func(context.Context) error { return nil })
}

// inPod starts a program in the network of the pod until the test ends, and waits until ready returns nil.
func (p *environment) inPod(c harness.Command, ready func(context.Context) error) *harness.Process {
	p.Helper()
	var process *harness.Process
	p.pod.Do(func() { process = harnesstest.Start(p, c, func(context.Context) error { return nil }) })
	p.await(ready)
	return process
}

func (p *environment) await(cond func(context.Context) error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), timeout)
	defer cancel()
	harnesstest.NoError(p, harness.Until(ctx, cond))
}

// healthy returns nil if stunnerctl doctor finds no problem.
func (p *environment) healthy(ctx context.Context) error {
	out, err := p.stunnerctl(ctx, "doctor")
	if err != nil {
		return fmt.Errorf("stunnerctl doctor: %w\n%s", err, out)
	}
	return nil
}

// installed returns the objects of an installation by the chart.
func installed(t *testing.T) string {
	t.Helper()
	folder := "kustomize/components/defaults/"
	return strings.Join([]string{
		harnesstest.Read(t, folder+"gatewayclass.yaml"), harnesstest.Read(t, folder+"gatewayconfig.yaml"),
		harnesstest.Read(t, folder+"dataplane.yaml"), installedCredentials,
	}, "---\n")
}

const installedCredentials = `
apiVersion: v1
kind: Secret
metadata: {name: stunner-turn-credentials, namespace: stunner-system}
stringData: {type: ephemeral, secret: generated-by-the-operator-in-a-cluster}
`

// endpoints returns the EndpointSlices that Kubernetes writes for the Services of the page.
func (p *environment) endpoints() string {
	p.Helper()
	var documents []string
	for _, object := range p.page.Objects(p) {
		if object["kind"] != "Service" {
			continue
		}
		var service corev1.Service
		harnesstest.NoError(p, guide.Convert(object, &service))
		slice := discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Name: service.Name, Namespace: service.Namespace,
				Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{podAddress}}},
		}
		for _, port := range service.Spec.Ports {
			protocol := corev1.ProtocolTCP
			if port.Protocol != "" {
				protocol = port.Protocol
			}
			number := port.TargetPort.IntVal
			if number == 0 {
				number = port.Port
			}
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &number, Protocol: &protocol})
		}
		text, err := yaml.Marshal(slice)
		harnesstest.NoError(p, err)
		documents = append(documents, string(text))
	}
	return strings.Join(documents, "---\n")
}

// enforce makes the pod drop packets that no NetworkPolicy of the page allows. The addresses of the Gateway's pods are
// publicAddress and podGateway, because the dataplane runs on the host.
func (p *environment) enforce() {
	p.Helper()
	rules, policies := "", 0
	for _, object := range p.page.Objects(p) {
		if object["kind"] != "NetworkPolicy" {
			continue
		}
		policies++
		var policy networkingv1.NetworkPolicy
		harnesstest.NoError(p, guide.Convert(object, &policy))
		for _, rule := range policy.Spec.Ingress {
			source := ""
			if len(rule.From) > 0 {
				source = fmt.Sprintf("ip saddr { %s, %s } ", publicAddress, podGateway)
				p.selectsGateway(policy, rule.From)
			}
			for _, port := range rule.Ports {
				protocol, last := "tcp", ""
				if port.Protocol != nil {
					protocol = strings.ToLower(string(*port.Protocol))
				}
				if port.EndPort != nil {
					last = fmt.Sprintf("-%d", *port.EndPort)
				}
				rules += fmt.Sprintf("%s%s dport %d%s accept\n", source, protocol, port.Port.IntValue(), last)
			}
		}
	}
	if policies == 0 {
		p.Fatalf("guide %s has no NetworkPolicy for the media server", p.page.Name)
	}
	file := filepath.Join(p.TempDir(), "policy.nft")
	harnesstest.NoError(p, os.WriteFile(file, []byte(`table inet networkpolicy { chain input {
type filter hook input priority filter; policy drop;
ct state established,related accept
meta l4proto icmp accept
iifname lo accept
`+rules+"}\n}\n"), 0o600))
	p.pod.Run(p.T, "nft -f "+file)
}

// selectsGateway checks that the sources of a rule are the pods of the Gateway of the page.
func (p *environment) selectsGateway(policy networkingv1.NetworkPolicy, from []networkingv1.NetworkPolicyPeer) {
	p.Helper()
	gateway := p.gateway()
	want := map[string]string{"gateway.networking.k8s.io/gateway-name": gateway.Name}
	for _, peer := range from {
		inNamespace := peer.NamespaceSelector == nil && policy.Namespace == gateway.Namespace || peer.NamespaceSelector != nil &&
			peer.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] == gateway.Namespace
		if peer.PodSelector == nil || !maps.Equal(peer.PodSelector.MatchLabels, want) || !inNamespace {
			p.Errorf("NetworkPolicy %s does not select the pods of Gateway %s/%s", policy.Name, gateway.Namespace, gateway.Name)
		}
	}
}

// gateway returns the metadata of the Gateway of the page.
func (p *environment) gateway() (meta metav1.ObjectMeta) {
	p.Helper()
	for _, object := range p.page.Objects(p) {
		if object["kind"] == "Gateway" {
			harnesstest.NoError(p, guide.Convert(object["metadata"].(map[string]any), &meta))
			return meta
		}
	}
	p.Fatalf("guide %s has no Gateway", p.page.Name)
	return meta
}

// secret returns the value of a key of a Secret of the page.
func (p *environment) secret(name, key string) string {
	p.Helper()
	for _, object := range p.page.Objects(p) {
		var secret corev1.Secret
		if object["kind"] != "Secret" {
			continue
		}
		harnesstest.NoError(p, guide.Convert(object, &secret))
		if value, has := secret.StringData[key]; secret.Name == name && has {
			return value
		}
	}
	p.Fatalf("guide %s has no Secret %s with key %s", p.page.Name, name, key)
	return ""
}

// serve runs a web server for clients until the test ends, and returns its URL. It has a loopback address, because
// browsers allow such pages as much as pages over HTTPS.
func (p *environment) serve(handlers map[string]http.Handler) string {
	p.Helper()
	var listener net.Listener
	var err error
	p.clients.Do(func() { listener, err = net.Listen("tcp", harness.Loopback+":0") })
	harnesstest.NoError(p, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for path, handler := range handlers {
		mux.Handle(path, handler)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go server.Serve(listener)
	p.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String()
}

// proxy forwards requests to a server, as an Ingress does.
func proxy(target string) http.Handler {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	return httputil.NewSingleHostReverseProxy(u)
}

// published returns the path of a program that make builds.
func published(t *testing.T, name, program string) string {
	t.Helper()
	folder, err := harness.Published(t.Context(), harnesstest.Root(t), name)
	harnesstest.NoError(t, err)
	return filepath.Join(folder, program)
}

// encode returns text in base64url without padding.
func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }
