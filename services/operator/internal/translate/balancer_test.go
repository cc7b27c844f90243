package translate

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// K-09: an annotation about a load balancer is read, or is an error that names annotation, value and remedy.
func TestAnnotationsAboutLoadBalancers(t *testing.T) {
	gw := &gwapiv1.Gateway{Spec: gwapiv1.GatewaySpec{Listeners: []gwapiv1.Listener{
		{Name: "web", Protocol: "TURN-TCP"}, {Name: "short", Protocol: "tcp"}, {Name: "tls", Protocol: "TURN-TLS"},
		{Name: "odd", Protocol: "HTTP"},
	}}}
	for _, tc := range []struct{ annotation, value, want string }{
		{annotationTLSAtBalancer, "", "[] []"},
		{annotationTLSAtBalancer, " , ", "[] []"},
		{annotationTLSAtBalancer, "web", "[web] []"},
		{annotationTLSAtBalancer, " web,short ,", "[web short] []"},
		{annotationTLSAtBalancer, "web,none", "[web none] []"},
		{annotationTLSAtBalancer, strings.Repeat("web,", 5000), "is longer than 16384 characters"},
		{annotationProxyProtocol, "", "[] []"},
		{annotationProxyProtocol, "10.0.0.7", "[] [10.0.0.7/32]"},
		{annotationProxyProtocol, "10.0.0.7/8, fd00::1/64", "[] [10.0.0.0/8 fd00::/64]"},
		{annotationProxyProtocol, "10.0.0.7/33", `proxy-protocol: "10.0.0.7/33" is no prefix of IP addresses: write`},
		{annotationProxyProtocol, "10.0.0.7 10.0.0.8", "is no prefix of IP addresses: write"},
		{annotationProxyProtocol, "true", `proxy-protocol: "true" is no prefix of IP addresses: write`},
		{annotationProxyProtocol, "10.0.0.7,0.0.0.0/0", `proxy-protocol: "0.0.0.0/0" contains every address: write`},
		{annotationProxyProtocol, strings.Repeat("10.0.0.7,", 65), "proxy-protocol: 65 prefixes are too many: the limit is 64"},
		{annotationProxyProtocol, strings.Repeat(",", 20_000), "is longer than 16384 characters"},
	} {
		own, byClass := gw.DeepCopy(), gw.DeepCopy()
		own.Annotations = map[string]string{tc.annotation: tc.value}
		class := &stunnerv1.GatewayConfig{}
		class.Spec.LoadBalancerServiceAnnotations = own.Annotations
		for _, of := range []struct {
			gw *gwapiv1.Gateway
			gc *stunnerv1.GatewayConfig
		}{{own, nil}, {byClass, class}} {
			a, found := annotationsOf(of.gw, of.gc)
			got := fmt.Sprint(a.tlsAtBalancer, " ", a.proxyProtocol)
			if strings.HasPrefix(tc.want, "[") {
				if got != tc.want || !found.OK() {
					t.Errorf("%s %.40q: %s, %s; want %s", tc.annotation, tc.value, got, found.Message(), tc.want)
				}
			} else if got != "[] []" || !strings.Contains(found.Message(), tc.want) {
				t.Errorf("%s %.40q: %s, %q; want %q", tc.annotation, tc.value, got, found.Message(), tc.want)
			}
		}
	}
}

// TLS ends at a load balancer of AWS in front of the listeners that its annotations select, unless the annotation of
// the operator names listeners itself.
func TestTLSAtLoadBalancersOfAWS(t *testing.T) {
	for _, tc := range []struct {
		annotations map[string]string
		want        string
	}{
		{map[string]string{awsCertificate: "arn:aws:acm:1"}, "[web tcp]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", awsTLSPorts: "443"}, "[web]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", awsTLSPorts: "80, tcp"}, "[tcp]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", awsTLSPorts: "*", awsBackendProtocol: "tcp"}, "[web tcp]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", awsTLSPorts: "80"}, "[]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", awsBackendProtocol: "ssl"}, "[]"},
		{map[string]string{awsCertificate: " ", awsTLSPorts: "443"}, "[]"},
		{map[string]string{awsTLSPorts: "443"}, "[]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", annotationServiceType: "NodePort"}, "[]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", annotationTLSAtBalancer: "tcp"}, "[tcp]"},
		{map[string]string{awsCertificate: "arn:aws:acm:1", annotationTLSAtBalancer: ""}, "[]"},
	} {
		gw := &gwapiv1.Gateway{Spec: gwapiv1.GatewaySpec{Listeners: []gwapiv1.Listener{
			{Name: "web", Port: 443, Protocol: "TURN-TCP"}, {Name: "tcp", Port: 3478, Protocol: "TURN-TCP"},
		}}}
		gw.Annotations = tc.annotations
		for _, provider := range []stunnerv1.LoadBalancerProvider{"", stunnerv1.LoadBalancerAWS, stunnerv1.LoadBalancerGKE} {
			want := tc.want
			if _, own := tc.annotations[annotationTLSAtBalancer]; provider == stunnerv1.LoadBalancerGKE && !own {
				want = "[]"
			}
			a, found := annotationsOf(gw, &stunnerv1.GatewayConfig{Spec: stunnerv1.GatewayConfigSpec{LoadBalancerProvider: provider}})
			d := draft{view: resource.NewView(nil), annotations: a}
			var got []string
			for _, l := range gw.Spec.Listeners {
				if d.endsTLS(string(l.Name)) {
					got = append(got, string(l.Name))
				}
			}
			if fmt.Sprint(got) != want || !found.OK() {
				t.Errorf("%v with provider %q: %v, %s; want %s", tc.annotations, provider, got, found.Message(), want)
			}
			if d.view = d.view.WithHost(resource.Host{}); len(a.tlsAtBalancer) == 0 && d.endsTLS("web") {
				t.Errorf("%v on a host: TLS ends at a load balancer", tc.annotations)
			}
		}
	}
}

// Every annotation in annotations.go is known to lint.
func TestAnnotationsAreKnown(t *testing.T) {
	text, err := os.ReadFile("annotations.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`= "(stunner\.l7mp\.io/[a-z-]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(names) < 15 {
		t.Errorf("only %d annotations", len(names))
	}
	for _, m := range names {
		if !IsAnnotation(m[1]) {
			t.Errorf("%s is not known", m[1])
		}
	}
}
