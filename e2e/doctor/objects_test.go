package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// faultsOfObjects are mistakes in objects.
func faultsOfObjects(t *testing.T, p *installation) (faults []fault) {
	e, g := p.Env, p.Gateways[0]
	gateway, route := "Gateway "+g.ID(), "UDPRoute "+g.ID()+"-first"
	config := "GatewayConfig " + e.System() + "/turn"
	// change replaces parts of objects: old text, new text, and so on.
	change := func(f fault, namespace, text string, parts ...string) {
		changed := strings.NewReplacer(parts...).Replace(text)
		if changed == text {
			t.Fatalf("%s: no %q in %s", f.name, parts, text)
		}
		f.severity = "error"
		f.make = func(t *testing.T) { must(t, e.Apply(t.Context(), namespace, changed)) }
		f.undo = func(t *testing.T) { must(t, e.Apply(t.Context(), namespace, text)) }
		faults = append(faults, f)
	}
	inRoute := func(f fault, parts ...string) { change(f, g.Namespace, g.RouteYAML(), parts...) }
	inGateway := func(f fault, parts ...string) { change(f, g.Namespace, g.YAML(), parts...) }
	inClass := func(f fault, parts ...string) { change(f, e.System(), e.ClassYAML(), parts...) }
	backend := "backendRefs: [{name: " + g.Name

	inRoute(fault{name: "a route names a listener that does not exist", object: route, problem: "none"}, "sectionName: udp", "sectionName: none")
	inRoute(fault{name: "a route names a Gateway that does not exist", object: gateway, field: "attachedRoutes", problem: "no route is attached",
		remedy: "parentRefs"}, "{name: "+g.Name+", sectionName", "{name: elsewhere, sectionName")
	inRoute(fault{name: "a route names a Service of another namespace", object: route, field: "backendRefs",
		problem: e.System() + "/" + g.Name + "-first"}, backend, "backendRefs: [{namespace: "+e.System()+", name: "+g.Name)
	inRoute(fault{name: "a route names a Service that does not exist", object: route, field: "backendRefs", problem: "there is no such"},
		backend+"-first", "backendRefs: [{name: none")
	inClass(fault{name: "the class names a GatewayConfig of another namespace", object: fmt.Sprintf("GatewayClass calls-%d", e.Number),
		field: "spec.parametersRef", problem: "does not exist"}, "name: turn, namespace: "+e.System()+"}\n---", "name: turn, namespace: elsewhere}\n---")
	inClass(fault{name: "the GatewayConfig names a Secret that does not exist", object: config, field: "spec.authRef", problem: "does not exist",
		remedy: "create the Secret"}, "authRef: {name: turn}", "authRef: {name: none}")
	inClass(fault{name: "the GatewayConfig names a Dataplane that does not exist", object: config, field: "spec.dataplane",
		problem: "does not exist", remedy: "create the Dataplane"}, fmt.Sprintf("dataplane: calls-%d", e.Number), "dataplane: none")
	change(fault{name: "the Secret has no credential", object: "Secret " + e.System() + "/turn", field: "data.secret",
		problem: `key "secret" is missing`, remedy: "add the key"},
		e.System(), e.SecretYAML(nil), "secret: ", "before: ")
	inGateway(fault{name: "a listener has an unknown protocol", object: gateway, field: "spec.listeners[tcp]", problem: "TURN-TPC"},
		"protocol: TURN-TCP", "protocol: TURN-TPC")
	if p.Shape.Is(env.APIServer) { // a folder allows every address, so this is no fault there
		inGateway(fault{name: "an address is requested that is not allowed", object: gateway, field: "spec.addresses", problem: "192.0.2.99"},
			"  listeners:\n", "  addresses: [{type: IPAddress, value: 192.0.2.99}]\n  listeners:\n")
	}
	inGateway(fault{name: "an annotation has a wrong value", object: gateway, field: "annotation", problem: "is no port"},
		"annotations: {", "annotations: {stunner.l7mp.io/health-port: none, ")
	inGateway(fault{name: "the Secret of a certificate does not exist", object: gateway, field: "spec.listeners[tls]", problem: "does not exist"},
		g.Name+"-certificate", "none")

	at := []net.IP{g.Listeners[2].Addresses()[0].Addr().AsSlice()}
	now := time.Now()
	good := issue(t, x509.Certificate{IPAddresses: at, NotAfter: now.AddDate(1, 0, 0)}, nil)
	good.PrivateKey = issue(t, x509.Certificate{NotAfter: now.AddDate(1, 0, 0)}, nil).PrivateKey
	for _, row := range []struct {
		name, severity, problem string
		pair                    tls.Certificate
	}{
		{"the certificate in the Secret has expired", "error", "the certificate expired on",
			issue(t, x509.Certificate{IPAddresses: at, NotAfter: now.Add(-time.Hour)}, nil)},
		{"the certificate in the Secret expires soon", "warning", "the certificate expires in",
			issue(t, x509.Certificate{IPAddresses: at, NotAfter: now.AddDate(0, 0, 3)}, nil)},
		{"the certificate in the Secret has neither the address nor a name for clients", "warning", "the certificate is for *.example.org",
			issue(t, x509.Certificate{DNSNames: []string{"*.example.org"}, NotAfter: now.AddDate(1, 0, 0)}, nil)},
		{"certificate and key do not belong together", "error", "key", good},
	} {
		key, err := x509.MarshalPKCS8PrivateKey(row.pair.PrivateKey)
		must(t, err)
		text := g.CertificateYAML(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: row.pair.Certificate[0]}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
		faults = append(faults, fault{
			name: row.name, severity: row.severity, object: gateway, field: "spec.listeners[tls].tls.certificateRefs", problem: row.problem,
			make: func(t *testing.T) { must(t, e.Apply(t.Context(), g.Namespace, text)) },
			undo: func(t *testing.T) { must(t, e.RenewCertificates(t.Context())) },
		})
	}
	return append(faults, faultsOfClients(p)...)
}
