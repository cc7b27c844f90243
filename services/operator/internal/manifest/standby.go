package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// StandbyType is the Secret type of standby Secrets. A standby Secret contains the config with which pods start while
// config discovery is unavailable. The separate type distinguishes it from a Secret that a user created with the same
// name: the type of a Secret is immutable.
const StandbyType corev1.SecretType = "stunner.l7mp.io/standby-config"

const (
	standbyVolume = "standby"
	standbyDir    = "/var/run/secrets/stunner-standby"
)

// StandbyDataKey is the key of the compressed config.
const StandbyDataKey = "stunnerd.conf.gz"

// StandbyRestAnnotation contains the revision that the config in a standby Secret would have without its clusters. It
// shows whether two configs differ only in the endpoints of media servers.
const StandbyRestAnnotation = "stunner.l7mp.io/revision-without-clusters"

// StandbySumAnnotation contains the SHA-256 of the compressed config in a standby Secret. If the config in the Secret
// has another sum, a user has modified the Secret.
const StandbySumAnnotation = "stunner.l7mp.io/sha256"

// StandbyName returns the name of the standby Secret of a Gateway.
func StandbyName(gateway string) string { return gateway + "-standby" }

// Standby returns the standby Secret of a Gateway. Labels and annotations of the Gateway are not copied to the Secret,
// because some of them make tools copy an object to other namespaces, and the Secret contains credentials.
func Standby(gateway types.NamespacedName, uid types.UID, c config.Config) *corev1.Secret {
	owner := Owner{
		Namespace: gateway.Namespace, Name: gateway.Name, UID: uid,
		Labels: map[string]string{}, Annotations: map[string]string{},
	}
	meta := owner.meta(StandbyName(gateway.Name))
	fixed := c
	fixed.Clusters = nil
	packed := c.Pack()
	sum := sha256.Sum256(packed)
	meta.Annotations = map[string]string{
		StandbyRestAnnotation: config.RevisionOf(fixed.Canonical()), StandbySumAnnotation: hex.EncodeToString(sum[:]),
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta,
		Type:       StandbyType,
		Data:       map[string][]byte{StandbyDataKey: packed},
	}
}

// StandbyKey returns the namespace and the name of the standby Secret of a Gateway.
func StandbyKey(gateway types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: gateway.Namespace, Name: StandbyName(gateway.Name)}
}

// ReadStandby returns the config in a standby Secret. gateway is the UID of the Gateway. It returns nil if the Secret
// is nil or invalid, or if the Gateway does not own the Secret.
func ReadStandby(s *corev1.Secret, gateway types.UID) *config.Config {
	owned := func(o metav1.OwnerReference) bool { return o.Kind == resource.KindGateway && o.UID == gateway }
	if s == nil || s.Type != StandbyType || !slices.ContainsFunc(s.OwnerReferences, owned) {
		return nil
	}
	c, _, err := config.Unpack(s.Data[StandbyDataKey])
	if err != nil {
		return nil
	}
	return &c
}

// standbyFiles returns the pod volume with the standby config. The Secret is optional, because a pod may start before
// the Secret exists.
func standbyFiles(o Owner) corev1.Volume {
	return corev1.Volume{Name: standbyVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: StandbyName(o.Name), Optional: new(true),
	}}}
}

func standbyMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: standbyVolume, MountPath: standbyDir, ReadOnly: true}
}

func standbyEnvironment() corev1.EnvVar {
	return corev1.EnvVar{Name: "STUNNER_STANDBY_CONFIG", Value: path.Join(standbyDir, StandbyDataKey)}
}
