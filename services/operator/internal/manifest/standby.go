package manifest

import (
	"path"

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
	standbyKey    = "stunnerd.conf.gz"
)

// StandbyName returns the name of the Secret of a Gateway.
func StandbyName(gateway string) string { return gateway + "-standby" }

// Standby holds the config of a Gateway for pods that start while nobody serves it. What people have written on the Gateway stays away from it: some
// labels and annotations have tools copy an object.
func Standby(gateway types.NamespacedName, uid types.UID, c config.Config) *corev1.Secret {
	owner := Owner{Namespace: gateway.Namespace, Name: gateway.Name, UID: uid, Labels: map[string]string{}, Annotations: map[string]string{}}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: owner.meta(StandbyName(gateway.Name)),
		Type:       StandbyType,
		Data:       map[string][]byte{standbyKey: c.Pack()},
	}
}

// StandbyConfig is the packed config in such a Secret; nil when there is none.
func StandbyConfig(s *corev1.Secret) []byte { return s.Data[standbyKey] }

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
	return corev1.EnvVar{Name: "STUNNER_STANDBY_CONFIG", Value: path.Join(standbyDir, standbyKey)}
}
