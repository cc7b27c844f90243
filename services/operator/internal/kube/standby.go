package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// standbyPause is the maximum delay with which changed endpoints are written to a standby Secret, the copy of a config
// for pods that start while the operator is down. The minimum is half of it; the delay is random, so that the writes
// for many Gateways are spread out. The delay protects the API server from a write for each endpoint change, and from
// many writes after a restart of the operator. In return, a pod that starts while the operator is down may get outdated
// endpoints.
const standbyPause = 10 * time.Minute

// onlyEndpointsDiffer reports whether the config in a live standby Secret differs from the wanted one only in its
// clusters. It is false if the live Secret was modified since the operator wrote it.
func onlyEndpointsDiffer(live, wanted *corev1.Secret) bool {
	sum := configSum(live)
	return live.Annotations[manifest.StandbyRestAnnotation] == wanted.Annotations[manifest.StandbyRestAnnotation] &&
		live.Annotations[manifest.StandbySumAnnotation] == sum && configSum(wanted) != sum
}

// configSum returns the SHA-256 of the compressed config in a standby Secret. The cache contains the sum in place of a
// long config, see condense.
func configSum(s *corev1.Secret) string {
	data := s.Data[manifest.StandbyDataKey]
	if sum, condensed := strings.CutPrefix(string(data), condensedPrefix); condensed {
		return sum
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
