package translate

import (
	"fmt"
	"slices"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

// tlsAtBalancerOf parses a list of the names of TURN-TCP listeners whose TLS ends at a load balancer.
func tlsAtBalancerOf(text string, gw *gwapiv1.Gateway) ([]string, condition.Finding) {
	names, err := listOf(text)
	for _, name := range names {
		if err == nil {
			err = tcpListener(gw, name)
		}
	}
	if err != nil {
		return nil, condition.AnnotationInvalid(annotationTLSAtBalancer, err)
	}
	return names, condition.Finding{}
}

// tcpListener returns an error unless a Gateway has a TURN-TCP listener with a name.
func tcpListener(gw *gwapiv1.Gateway, name string) error {
	i := slices.IndexFunc(gw.Spec.Listeners, func(l gwapiv1.Listener) bool { return string(l.Name) == name })
	if i < 0 {
		return finding.Errorf("write names of TURN-TCP listeners, separated by commas", "%.100q is no listener of the Gateway", name)
	}
	if p, _ := protocolOf(gw.Spec.Listeners[i].Protocol); p != config.TURNTCP {
		return finding.Errorf("use "+string(config.TURNTCP)+", because the load balancer sends it plain TCP, or leave it out",
			"listener %q has protocol %q", name, gw.Spec.Listeners[i].Protocol)
	}
	return nil
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
// longest name of one has 253 characters.
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
