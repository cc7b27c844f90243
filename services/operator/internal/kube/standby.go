package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// standbyPause is the maximum delay with which changed endpoints are written to a standby Secret, the copy of a config
// for pods that start while the operator is down. The minimum is half of it; the delay is random, so that the writes
// for many Gateways are spread out. The delay protects the API server from a write for each endpoint change, and from
// many writes after a restart of the operator. In return, a pod that starts while the operator is down may get outdated
// endpoints.
const standbyPause = 10 * time.Minute

// standbyKeys are the keys that authenticate standby Secrets, see trust.Authority.StandbyKeys. With AuthOff there is no
// CA to derive keys from, and the only key is empty.
type standbyKeys struct{ keys atomic.Pointer[[][]byte] }

// set replaces the keys, and reports whether the key for new Secrets has replaced another one.
func (k *standbyKeys) set(keys [][]byte) (replaced bool) {
	before := k.keys.Swap(&keys)
	return before != nil && len(*before) > 0 && len(keys) > 0 && !slices.Equal((*before)[0], keys[0])
}

// all returns the keys of existing Secrets.
func (k *standbyKeys) all() [][]byte {
	if keys := k.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// forNew returns the key for new Secrets. Without keys, it returns none, and such a Secret is never read.
func (k *standbyKeys) forNew() []byte {
	if keys := k.all(); len(keys) > 0 {
		return keys[0]
	}
	return nil
}

// onlyEndpointsDiffer reports whether the config in a live standby Secret differs from the wanted one only in its
// clusters. It is false if the live Secret was modified since the operator wrote it. owner is the UID of the Gateway.
func onlyEndpointsDiffer(
	live, wanted *corev1.Secret, gateway types.NamespacedName, owner types.UID, keys [][]byte,
) bool {
	sum := configSum(live)
	return live.Annotations[manifest.StandbyRestAnnotation] == wanted.Annotations[manifest.StandbyRestAnnotation] &&
		manifest.CheckStandby(live, gateway, owner, sum, keys) == nil && configSum(wanted) != sum
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
