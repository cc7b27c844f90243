package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// ConfigMapKey is the key in the ConfigMap of a Gateway whose value is the dataplane config.
const ConfigMapKey = "stunnerd.conf"

// leftOutKey is the key in the ConfigMap of a Gateway whose value names the parts of the config that did not fit into
// the ConfigMap.
const leftOutKey = "left-out"

// ConfigMapKeys are the possible keys in the ConfigMap of a Gateway.
var ConfigMapKeys = map[string]bool{ConfigMapKey: true, leftOutKey: true, DiscoveryCAKey: true}

// maxShownConfig is the maximum size in bytes of the config in the ConfigMap. The limit of Kubernetes for a ConfigMap
// is 1 MiB.
const maxShownConfig = 960 << 10

// ConfigMap returns the ConfigMap of a Gateway. It shows the config to users, with secrets redacted; dataplanes do not
// read the config from it. bundle contains the CA certificates of config discovery, which pods mount from the
// ConfigMap. It may be empty.
func ConfigMap(o Owner, c config.Config, bundle string) *corev1.ConfigMap {
	return WithConfig(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: o.meta(o.Name),
		Data:       map[string]string{DiscoveryCAKey: bundle},
	}, c)
}

// WithConfig returns a copy of a ConfigMap in which the config is replaced by c. If c is too big for a ConfigMap, its
// certificates and then its clusters are omitted.
func WithConfig(m *corev1.ConfigMap, c config.Config) *corev1.ConfigMap {
	m, c = m.DeepCopy(), c.Redacted()
	text := c.Canonical()
	var leftOut []string
	for _, part := range parts {
		if len(text) > maxShownConfig {
			part.drop(&c)
			text, leftOut = c.Canonical(), append(leftOut, part.name)
		}
	}
	bundle := m.Data[DiscoveryCAKey]
	m.Data = map[string]string{ConfigMapKey: string(text)}
	if bundle != "" {
		m.Data[DiscoveryCAKey] = bundle
	}
	if len(leftOut) > 0 {
		const reason = ": a ConfigMap cannot hold more; config discovery serves everything"
		m.Data[leftOutKey] = strings.Join(leftOut, ", ") + reason
	}
	return m
}

// parts are the parts of a config that may be large, in the order in which they are omitted.
var parts = []struct {
	name string
	drop func(*config.Config)
}{
	{"certificates", func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Cert, c.Listeners[i].Certificates = "", nil
		}
	}},
	{"clusters", func(c *config.Config) { c.Clusters = nil }},
}
