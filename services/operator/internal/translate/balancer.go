package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

// tlsAtBalancerOf parses a list of the names of TURN-TCP listeners whose TLS ends at a load balancer. A name that
// belongs to no such listener is ignored, and tlsNotes warns about it. It is not an error, because the list may come
// from a GatewayClass, and may contain a listener that was renamed or removed.
func tlsAtBalancerOf(text string) ([]string, condition.Finding) {
	names, err := listOf(text)
	if err != nil {
		return nil, condition.AnnotationInvalid(annotationTLSAtBalancer, err)
	}
	return names, condition.Finding{}
}

// Annotations by which a load balancer of AWS ends TLS.
const (
	awsCertificate     = "service.beta.kubernetes.io/aws-load-balancer-ssl-cert"
	awsTLSPorts        = "service.beta.kubernetes.io/aws-load-balancer-ssl-ports"
	awsBackendProtocol = "service.beta.kubernetes.io/aws-load-balancer-backend-protocol"
)

// tlsAtAWS returns the names of the listeners for which a load balancer of AWS terminates TLS, according to the
// annotations of the Service: the listeners with a port or name in the list of ports, or all if there is no list. With
// backend protocol ssl the load balancer encrypts again. The annotations have no effect if the GatewayConfig names
// another provider.
func tlsAtAWS(a map[string]string, gw *gwapiv1.Gateway, gc *stunnerv1.GatewayConfig) (names []string) {
	if gc != nil && cmp.Or(gc.Spec.LoadBalancerProvider, stunnerv1.LoadBalancerAWS) != stunnerv1.LoadBalancerAWS {
		return nil
	}
	if strings.TrimSpace(a[awsCertificate]) == "" || strings.EqualFold(strings.TrimSpace(a[awsBackendProtocol]), "ssl") {
		return nil
	}
	ports, err := listOf(a[awsTLSPorts])
	if err != nil {
		return nil
	}
	for _, l := range gw.Spec.Listeners {
		if len(ports) == 0 || slices.ContainsFunc(ports, func(p string) bool {
			return p == "*" || p == string(l.Name) || p == strconv.Itoa(int(l.Port))
		}) {
			names = append(names, string(l.Name))
		}
	}
	return names
}

// endsTLS reports whether a load balancer ends TLS in front of a listener.
func (d draft) endsTLS(listener string) bool {
	return slices.Contains(d.annotations.tlsAtBalancer, listener) ||
		d.view.Host() == nil && slices.Contains(d.annotations.tlsAtAWS, listener)
}

// tlsNotes warns about names in the annotation of the Gateway that no TURN-TCP listener has.
func (d draft) tlsNotes() (notes []condition.Finding) {
	names, _ := listOf(d.gateway.Annotations[annotationTLSAtBalancer])
	unknown := slices.DeleteFunc(names, func(name string) bool {
		return slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.name() == name && l.protocol == config.TURNTCP })
	})
	if len(unknown) > 0 {
		notes = append(notes, condition.TLSAtBalancerIgnored(annotationTLSAtBalancer, unknown))
	}
	return notes
}

// proxyProtocolOf parses a list of the prefixes of load balancers that send the PROXY protocol.
func proxyProtocolOf(text string) (prefixes []string, found condition.Finding) {
	texts, err := listOf(text)
	if err == nil && len(texts) > config.MaxProxyPrefixes {
		err = fmt.Errorf("%d prefixes are too many: the limit is %d", len(texts), config.MaxProxyPrefixes)
	}
	for _, text := range texts {
		if err == nil {
			var p fmt.Stringer
			p, err = config.ParseProxyPrefix(text)
			prefixes = append(prefixes, p.String())
		}
	}
	if err != nil {
		return nil, condition.AnnotationInvalid(annotationProxyProtocol, err)
	}
	return prefixes, condition.Finding{}
}

// maxListLength limits the length of an annotation with a list in bytes. A Gateway has at most 64 listeners, and the
// longest name of a listener has 253 characters.
const maxListLength = 64 * 256

// listOf returns the entries of a list with commas. Spaces around an entry and empty entries are ignored.
func listOf(text string) (entries []string, err error) {
	if len(text) > maxListLength {
		return nil, fmt.Errorf("is longer than %d characters", maxListLength)
	}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}
