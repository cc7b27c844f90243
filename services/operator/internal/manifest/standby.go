package manifest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// StandbyMACAnnotation contains the HMAC-SHA256 of a standby Secret, see standbyMAC. Without it, a user who may write
// Secrets in the namespace of a Gateway could make the operator publish any config of that Gateway.
const StandbyMACAnnotation = "stunner.l7mp.io/hmac-sha256"

// StandbyName returns the name of the standby Secret of a Gateway.
func StandbyName(gateway string) string { return gateway + "-standby" }

// Standby returns the standby Secret of a Gateway. Labels and annotations of the Gateway are not copied to the Secret,
// because some of them make tools copy an object to other namespaces, and the Secret contains credentials. key
// authenticates the Secret; if it is empty, the MAC shows only accidental changes.
func Standby(gateway types.NamespacedName, uid types.UID, c config.Config, key []byte) *corev1.Secret {
	owner := Owner{
		Namespace: gateway.Namespace, Name: gateway.Name, UID: uid,
		Labels: map[string]string{}, Annotations: map[string]string{},
	}
	meta := owner.meta(StandbyName(gateway.Name))
	fixed := c
	fixed.Clusters = nil
	packed := c.Pack()
	meta.Annotations = map[string]string{
		StandbyRestAnnotation: config.RevisionOf(fixed.Canonical()),
		StandbyMACAnnotation:  standbyMAC(gateway, uid, sumOf(packed), key),
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

// sumOf returns the SHA-256 of a compressed config in hexadecimal.
func sumOf(packed []byte) string {
	sum := sha256.Sum256(packed)
	return hex.EncodeToString(sum[:])
}

// standbyMAC returns the HMAC-SHA256 of the name and UID of a Gateway and of the sum of its compressed config. None of
// them contains a newline.
func standbyMAC(gateway types.NamespacedName, uid types.UID, sum string, key []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s\n%s\n%s", gateway, uid, sum)
	return hex.EncodeToString(mac.Sum(nil))
}

// CheckStandby returns an error unless the operator has written s with one of the keys, as the standby Secret of the
// Gateway with this UID. sum is the SHA-256 of the config in s, in hexadecimal: a cache may contain the sum only.
func CheckStandby(s *corev1.Secret, gateway types.NamespacedName, uid types.UID, sum string, keys [][]byte) error {
	owned := func(o metav1.OwnerReference) bool { return o.Kind == resource.KindGateway && o.UID == uid }
	signed := func(key []byte) bool {
		return hmac.Equal([]byte(s.Annotations[StandbyMACAnnotation]), []byte(standbyMAC(gateway, uid, sum, key)))
	}
	switch {
	case s.Type != StandbyType:
		return fmt.Errorf("type is %q, want %q", s.Type, StandbyType)
	case !slices.ContainsFunc(s.OwnerReferences, owned):
		return errors.New("the Gateway is not in metadata.ownerReferences")
	case !slices.ContainsFunc(keys, signed):
		return fmt.Errorf("annotation %s does not match the content: "+
			"it was changed, or was written with another CA of config discovery or by an older release", StandbyMACAnnotation)
	}
	return nil
}

// ReadStandby returns the config in a standby Secret. It returns an error if CheckStandby does, or if dataplanes of the
// Gateway would reject the config.
func ReadStandby(
	s *corev1.Secret, gateway types.NamespacedName, uid types.UID, keys [][]byte,
) (*config.Config, error) {
	if s == nil {
		return nil, errors.New("it does not exist")
	}
	packed := s.Data[StandbyDataKey]
	if err := CheckStandby(s, gateway, uid, sumOf(packed), keys); err != nil {
		return nil, err
	}
	c, _, err := config.Unpack(packed)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", StandbyDataKey, err)
	}
	if c.Default(); c.Admin.Name != gateway.String() {
		return nil, fmt.Errorf("%s is the config of %.200q", StandbyDataKey, c.Admin.Name)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("read %s: %w", StandbyDataKey, err)
	}
	return &c, nil
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
