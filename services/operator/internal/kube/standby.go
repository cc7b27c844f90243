package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// standbyPause is the maximum delay with which changed endpoints are written to a standby Secret; the minimum is half
// of it, and the delay is random so that the writes of many Gateways spread. Debouncing keeps endpoint changes, and a
// restart of the operator, from flooding the API server with writes. A pod that starts while the operator is down may
// miss newer endpoints.
const standbyPause = 10 * time.Minute

// onlyEndpointsDiffer reports whether a live standby Secret is unmodified since the operator wrote it, and its config
// differs from the wanted one in clusters only.
func onlyEndpointsDiffer(live, wanted *corev1.Secret) bool {
	sum := configSum(live)
	return live.Annotations[manifest.StandbyRestAnnotation] == wanted.Annotations[manifest.StandbyRestAnnotation] &&
		live.Annotations[manifest.StandbySumAnnotation] == sum && configSum(wanted) != sum
}

// configSum returns the SHA-256 of the packed config in a standby Secret. The cache holds the sum instead of a long
// config.
func configSum(s *corev1.Secret) string {
	data := s.Data[manifest.StandbyDataKey]
	if sum, condensed := strings.CutPrefix(string(data), condensedPrefix); condensed {
		return sum
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
