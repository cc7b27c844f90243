package main

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/operator/internal/file"
	"github.com/stunner-gateway/stunner/services/operator/internal/kube"
)

// discoveryAuth are the values of --discovery-auth that a provider has, its default first.
var discoveryAuth = map[string][]string{
	providerFile:       {file.AuthToken, file.AuthOff},
	providerKubernetes: {kube.AuthStrict, kube.AuthPermissive, kube.AuthOff},
}

const discoveryAuthUsage = `who may read configs, which hold secrets; off lets everybody, over plain HTTP
with file: token (default; whoever can read OUTPUT/discovery.token) or off
with kubernetes: strict (default; TLS, and the token of a dataplane pod or of --discovery-readers), permissive (as strict; all others, over plain HTTP too, read configs without secrets) or off`

const discoveryURLUsage = "URL of config discovery in rendered objects; empty means the Service stunner-config-discovery in the operator's namespace"

// checkDiscovery fills in what was not said about config discovery, and checks what was.
func (o *options) checkDiscovery() error {
	words := discoveryAuth[o.provider]
	o.discoveryAuth = cmp.Or(o.discoveryAuth, words[0])
	if !slices.Contains(words, o.discoveryAuth) {
		last := len(words) - 1
		return fmt.Errorf("--discovery-auth %q: use %s or %s", o.discoveryAuth, strings.Join(words[:last], ", "), words[last])
	}
	scheme := "http"
	if o.secured() {
		scheme = "https"
	}
	o.discoveryURL = cmp.Or(o.discoveryURL, fmt.Sprintf("%s://stunner-config-discovery.%s.svc.%s:13478", scheme, o.namespace, o.clusterDomain))
	u, err := url.Parse(o.discoveryURL)
	if err != nil || u.Host == "" {
		return fmt.Errorf("--discovery-url %q: use %s://HOST:PORT", o.discoveryURL, scheme)
	}
	if o.discoveryAuth == kube.AuthStrict && u.Scheme != "https" && u.Scheme != "wss" {
		return fmt.Errorf("--discovery-url %q: with --discovery-auth=%s nobody is answered there: use https", o.discoveryURL, kube.AuthStrict)
	}
	for _, account := range o.accounts() {
		if namespace, name, ok := strings.Cut(strings.TrimSuffix(account, kube.WholeConfigs), "/"); !ok || namespace == "" || name == "" || strings.ContainsAny(name, "/:") {
			return fmt.Errorf("--discovery-readers %q: use NAMESPACE/SERVICEACCOUNT or NAMESPACE/SERVICEACCOUNT:whole", account)
		}
	}
	return nil
}

const scalerAddressUsage = "with kubernetes: HOST:PORT where KEDA is told over gRPC how many allocations there are, with the certificate of config discovery; empty tells nobody"

const scalerURLUsage = "HOST:PORT where KEDA asks the operator how many allocations there are, in rendered objects; empty means the host of --discovery-url, port 13480"

// scalerPort is where KEDA finds the operator unless it is told otherwise.
const scalerPort = "13480"

// checkScaler checks where KEDA finds the operator, and where the operator waits for it. It comes after checkDiscovery.
func (o *options) checkScaler() error {
	if u, err := url.Parse(o.discoveryURL); o.scalerURL == "" && err == nil {
		o.scalerURL = net.JoinHostPort(u.Hostname(), scalerPort)
	}
	if _, _, err := net.SplitHostPort(o.scalerAddress); err != nil && o.scalerAddress != "" {
		return fmt.Errorf("--scaler-address %q: use HOST:PORT, or nothing", o.scalerAddress)
	}
	if host, port, err := net.SplitHostPort(o.scalerURL); err != nil || host == "" || port == "" {
		return fmt.Errorf("--scaler-url %q: use HOST:PORT", o.scalerURL)
	}
	return nil
}

// secured tells whether dataplane pods need a token for config discovery, and know it by its certificate.
func (o options) secured() bool {
	return o.provider == providerKubernetes && o.discoveryAuth != kube.AuthOff
}
