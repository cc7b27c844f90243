package manifest

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// ConfigMapKey is the key under which the config stands.
const ConfigMapKey = "stunnerd.conf"

// ConfigMap shows people the config of a Gateway. Dataplanes do not read it, and it holds no secret.
func ConfigMap(o Owner, c config.Config) *corev1.ConfigMap {
	return Show(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: o.meta(o.Name),
	}, c)
}

// Show returns a copy of a ConfigMap that shows another config.
func Show(m *corev1.ConfigMap, c config.Config) *corev1.ConfigMap {
	m = m.DeepCopy()
	m.Data = map[string]string{ConfigMapKey: string(c.Redacted().Canonical())}
	return m
}
