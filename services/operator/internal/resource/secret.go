package resource

import (
	corev1 "k8s.io/api/core/v1"
)

// Annotations of authentication Secrets.
const (
	// GeneratedSecret is an annotation with the value "true" on a Secret whose content the operator generated at
	// random.
	GeneratedSecret = "stunner.l7mp.io/generated"
	// SharedUntil is an annotation of an authentication Secret with a time in RFC 3339 format. Until this time,
	// Gateways with derived signing keys also accept credentials that were signed with the shared secret.
	SharedUntil = "stunner.l7mp.io/shared-until"
)

// MaxSecretValue is the maximum length in bytes of a value of a Secret that a translation may use.
const MaxSecretValue = 64 << 10

// maxSecretAnnotation is the maximum length in bytes of an annotation of a Secret that translations read.
const maxSecretAnnotation = 64

// TrimSecret removes the parts of a Secret that translations do not read. A value that is longer than MaxSecretValue is
// cut one byte after this limit, so that translations recognize and reject it.
func TrimSecret(s *corev1.Secret) {
	s.ManagedFields, s.Labels, s.Finalizers = nil, nil, nil
	kept := map[string]string{}
	for _, name := range []string{GeneratedSecret, SharedUntil} {
		if value, ok := s.Annotations[name]; ok && len(value) <= maxSecretAnnotation {
			kept[name] = value
		}
	}
	s.Annotations = kept
	for key, value := range s.Data {
		if len(value) > MaxSecretValue {
			s.Data[key] = append([]byte(nil), value[:MaxSecretValue+1]...)
		}
	}
}
