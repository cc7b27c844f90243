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
)

// StandbyType is the type of the Secrets with which pods start while config discovery is away. Kubernetes lets nobody change the type of a Secret: one
// that people have made under the same name is never taken for ours.
const StandbyType corev1.SecretType = "stunner.l7mp.io/standby-config"

const (
	standbyVolume = "standby"
	standbyDir    = "/var/run/secrets/stunner-standby"
)

// StandbyDataKey is the key under which the config stands.
const StandbyDataKey = "stunnerd.conf.gz"

// StandbyRestAnnotation is the revision of the config in such a Secret without its clusters: what does not change by the second while a media server is
// rolled out.
const StandbyRestAnnotation = "stunner.l7mp.io/revision-without-clusters"

// StandbySumAnnotation is the SHA-256 of the packed config in such a Secret: another one means that somebody has changed the Secret.
const StandbySumAnnotation = "stunner.l7mp.io/sha256"

// StandbyName returns the name of the Secret of a Gateway.
func StandbyName(gateway string) string { return gateway + "-standby" }

// Standby holds the config of a Gateway for pods that start while nobody serves it. What people have written on the Gateway stays away from it: some
// labels and annotations have tools copy an object.
func Standby(gateway types.NamespacedName, uid types.UID, c config.Config) *corev1.Secret {
	owner := Owner{Namespace: gateway.Namespace, Name: gateway.Name, UID: uid, Labels: map[string]string{}, Annotations: map[string]string{}}
	meta := owner.meta(StandbyName(gateway.Name))
	fixed := c
	fixed.Clusters = nil
	packed := c.Pack()
	sum := sha256.Sum256(packed)
	meta.Annotations = map[string]string{StandbyRestAnnotation: config.RevisionOf(fixed.Canonical()), StandbySumAnnotation: hex.EncodeToString(sum[:])}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta,
		Type:       StandbyType,
		Data:       map[string][]byte{StandbyDataKey: packed},
	}
}

// StandbyKey names the Secret of a Gateway.
func StandbyKey(gateway types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: gateway.Namespace, Name: StandbyName(gateway.Name)}
}

// ReadStandby returns the config that a Secret holds for the Gateway with a UID; nil if there is none, or if the Secret is not one that the operator has made.
func ReadStandby(s *corev1.Secret, gateway types.UID) *config.Config {
	owned := func(o metav1.OwnerReference) bool { return o.Kind == "Gateway" && o.UID == gateway }
	if s == nil || s.Type != StandbyType || !slices.ContainsFunc(s.OwnerReferences, owned) {
		return nil
	}
	c, _, err := config.Unpack(s.Data[StandbyDataKey])
	if err != nil {
		return nil
	}
	return &c
}

// standbyFiles is the volume: a pod may be there before the Secret.
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
