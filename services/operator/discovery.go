package main

import (
	"cmp"
	"fmt"
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
		if namespace, name, ok := strings.Cut(account, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("--discovery-readers %q: use NAMESPACE/SERVICEACCOUNT", account)
		}
	}
	return nil
}

// secured tells whether dataplane pods need a token for config discovery, and know it by its certificate.
func (o options) secured() bool {
	return o.provider == providerKubernetes && o.discoveryAuth != kube.AuthOff
}
