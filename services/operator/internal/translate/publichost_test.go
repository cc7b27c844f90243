package translate_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// named returns a Secret in YAML with a certificate for DNS names and IP addresses. Its subject is subject.example.com.
// Its chain ends with the certificate of an issuer for issuer.example.com.
func named(t *testing.T, secret string, names ...string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "subject.example.com"}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	issuer := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "issuer"}, IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"issuer.example.com"},
	}
	var chain []byte
	for _, c := range []*x509.Certificate{template, issuer} {
		der, err := x509.CreateCertificate(rand.Reader, c, issuer, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: turn, name: %s}\ntype: kubernetes.io/tls\n"+
		"data: {tls.crt: %s, tls.key: %s}\n", secret, text(chain),
		text(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

// secured is a Gateway with listeners of each protocol, and its Services.
const secured = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: turn, name: lobby, uid: 7d3e, generation: 3}
spec:
  gatewayClassName: edge
  addresses: []
  listeners:
    - {name: udp, port: 3478, protocol: TURN-UDP}
    - {name: tcp, port: 3478, protocol: TURN-TCP}
    - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: one}]}}
    - {name: dtls, port: 5349, protocol: TURN-DTLS, tls: {certificateRefs: [{name: one}]}}
---
apiVersion: v1
kind: Service
metadata:
  namespace: turn
  name: lobby
  annotations: {stunner.l7mp.io/related-gateway-name: turn/lobby}
  labels: {gateway.networking.k8s.io/gateway-name: lobby}
  ownerReferences:
    - {apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: lobby, uid: 7d3e}
spec:
  type: LoadBalancer
  clusterIP: 10.43.0.9
  ports:
    - {name: udp, protocol: UDP, port: 3478}
    - {name: tcp, protocol: TCP, port: 3478}
    - {name: tls, protocol: TCP, port: 443, nodePort: 30443}
    - {name: dtls, protocol: UDP, port: 5349}
status: {loadBalancer: {ingress: [{ip: 203.0.113.40}]}}
`

// publicView returns a view of secured after replacements, the Secrets and the base objects.
func publicView(t *testing.T, host *resource.Host, secrets []string, replacements ...string) *resource.View {
	t.Helper()
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(secured, replacements[i]) {
			t.Fatalf("%q is not there", replacements[i])
		}
	}
	text := strings.NewReplacer(replacements...).Replace(secured) + strings.Join(secrets, "")
	c := &testCase{host: host, objects: decodeChecked(t, "objects.yaml", []byte(text))}
	c.objects = append(c.objects, c.missingOf(base(t), nil)...)
	return c.view()
}

var lobby = types.NamespacedName{Namespace: "turn", Name: "lobby"}

// toldBy returns the URIs that clients receive, by listener.
func toldBy(t *testing.T, c *config.Config) map[string]string {
	t.Helper()
	if c == nil {
		t.Fatal("no config")
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, l := range c.Listeners {
		var uris []string
		for _, uri := range l.URIs() {
			uris = append(uris, uri.String())
		}
		all[l.Name[strings.LastIndexByte(l.Name, '/')+1:]] = strings.Join(uris, " ")
	}
	return all
}

// Clients of a secure listener receive the first host name of its certificate, once, if the certificate is valid for
// none of its addresses and the Gateway requests none. Clients of the other listeners always receive the addresses.
func TestNameOfACertificateIsToldInPlaceOfAnAddress(t *testing.T) {
	const byName, byAddress = "turns:turn.example.com:443?transport=tcp", "turns:203.0.113.40:443?transport=tcp"
	ingress := func(entries string) []string { return []string{"{ip: 203.0.113.40}", entries} }
	for name, c := range map[string]struct {
		names   []string
		replace []string
		host    *resource.Host
		want    string
	}{
		"name only":                {[]string{"turn.example.com"}, nil, nil, byName},
		"the first of names":       {[]string{"turn.example.com", "www.example.com"}, nil, nil, byName},
		"wildcard and name":        {[]string{"*.example.com", "turn.example.com"}, nil, nil, byName},
		"wildcard":                 {[]string{"*.example.com"}, nil, nil, byAddress},
		"subject only":             {nil, nil, nil, byAddress},
		"the address":              {[]string{"turn.example.com", "203.0.113.40"}, nil, nil, byAddress},
		"another address":          {[]string{"203.0.113.41", "turn.example.com"}, nil, nil, byName},
		"another address only":     {[]string{"203.0.113.41"}, nil, nil, byAddress},
		"a name of the cluster":    {[]string{"lobby.turn.svc", "lobby.turn.svc.cluster.local"}, nil, nil, byAddress},
		"text that is no name":     {[]string{"turn.example.com:443", "turn example.com", "$STUNNER_ADDR"}, nil, nil, byAddress},
		"a name of 254 bytes":      {[]string{strings.Repeat("a.", 126) + "ab"}, nil, nil, byAddress},
		"text, then name":          {[]string{`"turn".example.com`, "turn.example.com"}, nil, nil, byName},
		"IP address requested":     {[]string{"turn.example.com"}, []string{"addresses: []", "addresses: [{value: 203.0.113.40}]"}, nil, byAddress},
		"no particular address":    {[]string{"turn.example.com"}, []string{"addresses: []", "addresses: [{type: IPAddress}]"}, nil, byName},
		"host name requested":      {[]string{"turn.example.com"}, []string{"addresses: []", "addresses: [{type: Hostname, value: calls.example.com}]"}, nil, "turns:calls.example.com:443?transport=tcp"},
		"several addresses":        {[]string{"turn.example.com"}, ingress("{ip: 203.0.113.40}, {ip: 203.0.113.41}, {ip: 2001:db8::40}"), nil, byName},
		"one of several addresses": {[]string{"turn.example.com", "2001:db8::40"}, ingress("{ip: 203.0.113.40}, {ip: 2001:db8::40}"), nil, byAddress + " turns:[2001:db8::40]:443?transport=tcp"},
		"load balancer with a name": {
			[]string{"turn.example.com"}, ingress("{hostname: lb-7.provider.example}"), nil, byName,
		},
		"load balancer with a covered name": {
			[]string{"turn.example.com", "*.provider.example"}, ingress("{hostname: lb-7.provider.example}"), nil,
			"turns:lb-7.provider.example:443?transport=tcp",
		},
		"node port": {
			[]string{"turn.example.com"}, []string{
				"type: LoadBalancer", "type: NodePort", "status: {loadBalancer: {ingress: [{ip: 203.0.113.40}]}}",
				"---\napiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {addresses: [{type: ExternalIP, address: 203.0.113.50}]}",
			}, nil, "turns:turn.example.com:30443?transport=tcp",
		},
		"host with both families": {
			[]string{"turn.example.com"}, nil, &resource.Host{
				Addresses: []string{"192.0.2.200", "2001:db8::200"},
				Ports:     map[resource.ListenerKey]int{{Namespace: "turn", Gateway: "lobby", Listener: "tls"}: 8443},
			}, "turns:turn.example.com:8443?transport=tcp",
		},
		"no address": {[]string{"turn.example.com"}, []string{"[{ip: 203.0.113.40}]", "[]"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := publicView(t, c.host, []string{named(t, "one", c.names...)}, c.replace...)
			r := translate.Gateway(v, lobby, translate.DefaultOptions())
			told := toldBy(t, r.Config)
			if told["tls"] != c.want {
				t.Errorf("clients of tls are told %q, want %q", told["tls"], c.want)
			}
			for _, l := range r.Config.Listeners {
				named := l.Protocol.Secure() && l.PublicAddress != ""
				if (l.PublicHost != "") != (named && strings.Contains(c.want, "turn.example.com")) {
					t.Errorf("%s: public_host %q", l.Name, l.PublicHost)
				}
			}
			for _, a := range r.Status.Addresses {
				if a.Value == "turn.example.com" {
					t.Errorf("the status has the name, from which external-dns would create a record that refers to itself")
				}
			}
		})
	}
}

// Clients that use an address send no server name and get the first certificate. Clients that use a name get the
// certificate that matches the name.
func TestNameOfOneOfSeveralCertificates(t *testing.T) {
	refs := []string{"[{name: one}]", "[{name: one}, {name: two}]"}
	for name, c := range map[string]struct {
		one, two []string
		want     string
	}{
		"address in the first":     {[]string{"203.0.113.40"}, []string{"turn.example.com"}, "203.0.113.40"},
		"address in the second":    {[]string{"*.example.com"}, []string{"203.0.113.40", "turn.example.com"}, "turn.example.com"},
		"name in both":             {[]string{"turn.example.com"}, []string{"meet.example.com"}, "turn.example.com"},
		"address of the second":    {[]string{"turn.example.com"}, []string{"203.0.113.40"}, "turn.example.com"},
		"name in neither of these": {[]string{"*.example.com"}, []string{"*.example.net"}, "203.0.113.40"},
	} {
		v := publicView(t, nil, []string{named(t, "one", c.one...), named(t, "two", c.two...)}, refs...)
		told := toldBy(t, translate.Gateway(v, lobby, translate.DefaultOptions()).Config)
		if want := "turns:" + c.want + ":443?transport=tcp"; told["tls"] != want {
			t.Errorf("%s: %q, want %q", name, told["tls"], want)
		}
	}
}

// The announced host changes with the certificate and the requested addresses. If a certificate is invalid, the
// published certificate and its host stay in use.
func TestToldHostFollowsTheCertificate(t *testing.T) {
	opt := translate.DefaultOptions()
	first := named(t, "one", "turn.example.com")
	broken := strings.Replace(first, "tls.key: ", "tls.key: AAAA", 1)
	for _, step := range []struct {
		name, secret, want string
		replace            []string
	}{
		{"at first", first, "turn.example.com", nil},
		{"another name", named(t, "one", "calls.example.com"), "calls.example.com", nil},
		{"the address", named(t, "one", "203.0.113.40"), "203.0.113.40", nil},
		{"the name again", first, "turn.example.com", nil},
		{"broken", broken, "turn.example.com", nil},
		{"broken, and another address", broken, "turn.example.com", []string{"203.0.113.40", "203.0.113.41"}},
		{"broken, and the address is requested", broken, "203.0.113.40", []string{"addresses: []", "addresses: [{value: 203.0.113.40}]"}},
		{"broken, and no longer requested", broken, "turn.example.com", nil},
		{"broken, and another port", broken, "turn.example.com", []string{"port: 443, protocol: TURN-TLS", "port: 8443, protocol: TURN-TLS"}},
		{"no Secret", "", "turn.example.com", nil},
		{"no reference", first, "turn.example.com", []string{"TURN-TLS, tls: {certificateRefs: [{name: one}]}", "TURN-TLS"}},
		{"wildcard", named(t, "one", "*.example.com"), "203.0.113.40", nil},
		{"broken after a wildcard", broken, "203.0.113.40", nil},
	} {
		r := translate.Gateway(publicView(t, nil, []string{step.secret}, step.replace...), lobby, opt)
		if opt.Published = r.Config; r.Decision != translate.Served {
			t.Fatalf("%s: %s", step.name, r.Decision)
		}
		told := toldBy(t, r.Config)
		if want := "turns:" + step.want + ":443?transport=tcp"; told["tls"] != want {
			t.Errorf("%s: %q, want %q", step.name, told["tls"], want)
		}
	}
}
