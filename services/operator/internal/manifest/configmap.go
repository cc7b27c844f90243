package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// ConfigMapKey is the key of the config in the ConfigMap of a Gateway.
const ConfigMapKey = "stunnerd.conf"

// leftOutKey is the key of a text about the parts of the config that did not fit.
const leftOutKey = "left-out"

// ConfigMapKeys are the possible keys in the ConfigMap of a Gateway.
var ConfigMapKeys = map[string]bool{ConfigMapKey: true, leftOutKey: true, DiscoveryCAKey: true}

// maxShown is the maximum size of the config in the ConfigMap in bytes. The limit of Kubernetes for a ConfigMap is 1
// MiB.
const maxShown = 960 << 10

// ConfigMap returns the ConfigMap of a Gateway. It shows the config to users, with secrets redacted; dataplanes do not
// read the config from it. bundle contains the CA certificates of config discovery, which pods mount from the
// ConfigMap, or is empty.
func ConfigMap(o Owner, c config.Config, bundle string) *corev1.ConfigMap {
	return Show(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: o.meta(o.Name),
		Data:       map[string]string{DiscoveryCAKey: bundle},
	}, c)
}

// Show returns a copy of a ConfigMap that contains another config. If the config is too big, certificates and then
// clusters are omitted.
func Show(m *corev1.ConfigMap, c config.Config) *corev1.ConfigMap {
	m, c = m.DeepCopy(), c.Redacted()
	text := c.Canonical()
	var leftOut []string
	for _, part := range parts {
		if len(text) > maxShown {
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
