package manifest

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// DiscoveryAudience is the audience of the tokens with which pods fetch their config.
const DiscoveryAudience = "stunner-discovery"

// DiscoveryCAKey is the key in the ConfigMap of the CA certificates of config discovery.
const DiscoveryCAKey = "discovery-ca.crt"

// The volume with the token for config discovery and with its CA certificates.
const (
	discoveryVolume = "discovery"
	discoveryDir    = "/var/run/secrets/stunner-discovery"
	tokenFile       = "token"
	caFile          = "ca.crt"
	tokenSeconds    = 3600
)

// discoveryFiles returns the volume. The kubelet updates both files, so that neither a new token nor a new CA needs a
// new pod. The ConfigMap is optional because a pod may start before it exists.
func discoveryFiles(o Owner) corev1.Volume {
	return corev1.Volume{Name: discoveryVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: DiscoveryAudience, ExpirationSeconds: new(int64(tokenSeconds)), Path: tokenFile,
			}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: o.Name},
				Items:                []corev1.KeyToPath{{Key: DiscoveryCAKey, Path: caFile}},
				Optional:             new(true),
			}},
		},
	}}}
}

func discoveryMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: discoveryVolume, MountPath: discoveryDir, ReadOnly: true}
}

func discoveryEnvironment() []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "STUNNER_DISCOVERY_TOKEN_FILE", Value: path.Join(discoveryDir, tokenFile)},
		{Name: "STUNNER_DISCOVERY_CA_FILE", Value: path.Join(discoveryDir, caFile)},
	}
}
