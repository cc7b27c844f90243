package manifest

import (
	"path"

	corev1 "k8s.io/api/core/v1"
)

// DiscoveryAudience is what the tokens are made for by which pods read their config: one for anything else opens nothing there.
const DiscoveryAudience = "stunner-discovery"

// DiscoveryCAKey is the key of the ConfigMap under which the CA certificates stand by which pods know config discovery.
const DiscoveryCAKey = "discovery-ca.crt"

// What a pod shows to config discovery, and by what it knows it, lies in one volume.
const (
	discoveryVolume = "discovery"
	discoveryDir    = "/var/run/secrets/stunner-discovery"
	tokenFile       = "token"
	caFile          = "ca.crt"
	tokenSeconds    = 3600
)

// discoveryFiles is the volume. A kubelet keeps both files new, so that neither a new token nor a new CA needs a new pod; a pod that is there
// before the ConfigMap waits for nothing but its config.
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
