package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// ConfigMapKey is the key under which the config stands.
const ConfigMapKey = "stunnerd.conf"

// leftOutKey is the key under which stands what had to be left out.
const leftOutKey = "left-out"

// ConfigMapKeys are all keys that the ConfigMap of a Gateway may have.
var ConfigMapKeys = map[string]bool{ConfigMapKey: true, leftOutKey: true, DiscoveryCAKey: true}

// maxShown leaves room for the rest of a ConfigMap, which Kubernetes lets have 1 MiB.
const maxShown = 960 << 10

// ConfigMap shows people the config of a Gateway, and its pods the CA certificates in bundle, if there are any. Dataplanes do not read the config
// there, and it holds no secret.
func ConfigMap(o Owner, c config.Config, bundle string) *corev1.ConfigMap {
	return Show(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: o.meta(o.Name),
		Data:       map[string]string{DiscoveryCAKey: bundle},
	}, c)
}

// Show returns a copy of a ConfigMap that shows another config: all of it, or as much as fits.
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
		m.Data[leftOutKey] = strings.Join(leftOut, ", ") + ": a ConfigMap cannot hold more; config discovery serves everything"
	}
	return m
}

// parts are what may grow beyond every bound, those first that are least missed.
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
