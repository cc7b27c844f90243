package main

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stunner-gateway/stunner/services/operator/internal/file"
	"github.com/stunner-gateway/stunner/services/operator/internal/kube"
)

// discoveryAuth lists, by provider, the supported values of --discovery-auth. The first value is the default.
var discoveryAuth = map[string][]string{
	providerFile:       {file.AuthToken, file.AuthOff},
	providerKubernetes: {kube.AuthStrict, kube.AuthPodAddress, kube.AuthPermissive, kube.AuthOff},
}

const discoveryAuthUsage = `authentication of clients that read configs, which contain secrets; off allows everyone, over
plain HTTP
with file: token (default; the token in OUTPUT/discovery.token) or off
with kubernetes: strict (default; TLS, and the token of a dataplane pod or of --discovery-readers), pod-address (as
strict; a dataplane pod without a token, also over plain HTTP, is recognized by its address), permissive (as strict; all
others, also over plain HTTP, read configs without secrets) or off`

const discoveryURLUsage = `URL of config discovery in rendered objects; empty means the Service stunner-config-discovery in
the operator's namespace`

// checkDiscovery sets the defaults of the flags for config discovery and checks these flags.
func (o *options) checkDiscovery() error {
	words := discoveryAuth[o.provider]
	o.discoveryAuth = cmp.Or(o.discoveryAuth, words[0])
	if !slices.Contains(words, o.discoveryAuth) {
		last := len(words) - 1
		return fmt.Errorf("--discovery-auth %q: use %s or %s",
			o.discoveryAuth, strings.Join(words[:last], ", "), words[last])
	}
	scheme := "http"
	if o.secured() {
		scheme = "https"
	}
	o.discoveryURL = cmp.Or(o.discoveryURL,
		fmt.Sprintf("%s://stunner-config-discovery.%s.svc.%s:13478", scheme, o.namespace, o.clusterDomain))
	u, err := url.Parse(o.discoveryURL)
	if err != nil || u.Host == "" {
		return fmt.Errorf("--discovery-url %q: use %s://HOST:PORT", o.discoveryURL, scheme)
	}
	if o.discoveryAuth == kube.AuthStrict && u.Scheme != "https" && u.Scheme != "wss" {
		return fmt.Errorf("--discovery-url %q: with --discovery-auth=%s nobody is answered there: use https", o.discoveryURL,
			kube.AuthStrict)
	}
	for _, account := range o.accounts() {
		namespace, name, ok := strings.Cut(strings.TrimSuffix(account, kube.WholeConfigs), "/")
		if !ok || strings.ContainsAny(name, "/:") {
			return fmt.Errorf("--discovery-readers %q: use NAMESPACE/SERVICEACCOUNT or NAMESPACE/SERVICEACCOUNT:whole",
				account)
		}
		if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
			return fmt.Errorf("--discovery-readers %q: namespace %q: %s", account, namespace, wrong[0])
		}
		if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
			return fmt.Errorf("--discovery-readers %q: ServiceAccount %q: %s", account, name, wrong[0])
		}
	}
	return nil
}

const scalerAddressUsage = `with kubernetes: HOST:PORT of the external scaler for KEDA, gRPC with the certificate of config
discovery; empty disables it`

const scalerURLUsage = `HOST:PORT of the external scaler in rendered objects; empty means the host of --discovery-url, port
13480`

// scalerPort is the default port of the external scaler.
const scalerPort = "13480"

// checkScaler sets the defaults of the flags for the KEDA external scaler and checks these flags. It must be called
// after checkDiscovery, which sets o.discoveryURL.
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

// secured reports whether dataplane pods use TLS and a token for config discovery.
func (o options) secured() bool {
	return o.provider == providerKubernetes && o.discoveryAuth != kube.AuthOff
}
