package manifest

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// DiscoveryAudience is the audience of the ServiceAccount tokens with which dataplane pods fetch their config.
const DiscoveryAudience = "stunner-discovery"

// DiscoveryCAKey is the key of the CA certificates of config discovery in the ConfigMap of a Gateway.
const DiscoveryCAKey = "discovery-ca.crt"

// A volume of the dataplane pod contains a token for config discovery and the CA certificates of config discovery.
const (
	discoveryVolume = "discovery"
	discoveryDir    = "/var/run/secrets/stunner-discovery"
	tokenFile       = "token"
	caFile          = "ca.crt"
	tokenSeconds    = 3600
)

// discoveryFiles returns the volume with the token and the CA certificates for config discovery. The kubelet updates
// both files, so a pod does not need to be replaced for a new token or a new CA. The ConfigMap is optional, because a
// pod may start before the ConfigMap exists.
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
