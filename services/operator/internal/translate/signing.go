package translate

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// RootKey is the key of a Secret from which the keys of Gateways are derived. It reaches no dataplane, so whoever has read the shared secret of a
// dataplane cannot derive the key of another one. Where it is absent, they are derived from the shared secret.
const RootKey = "root"

// of makes the authentication that of one Gateway: with a shared secret of its own, where the GatewayConfig or the origin of the Secret asks for it.
func (a authentication) of(gateway types.NamespacedName, gc *stunnerv1.GatewayConfig) (config.Auth, condition.Finding) {
	shared, signs := a.Credentials[config.KeySecret]
	if !signs || gc == nil || a.signingKey(gc) != stunnerv1.SigningKeyPerGateway {
		return a.Auth, condition.Finding{}
	}
	root := shared
	if a.signing != nil {
		if r := valueOf(a.signing, RootKey); r != nil && r.Secret != "" {
			root = r.Secret
		}
	}
	own, err := root.Derive(gateway.String())
	if err != nil {
		return a.Auth, condition.CredentialUnreadable(condition.InlineField(resource.KeyOf(gc).String(), "signingKey"), err)
	}
	auth := a.Auth
	auth.Credentials[config.KeySecret] = own
	if until := sharedUntil(a.signing); !until.IsZero() {
		auth.Former = &config.FormerSecret{Secret: shared, Until: until.Unix()}
	}
	return auth, condition.Finding{}
}

// signingKey is PerGateway by default where the operator has generated the Secret. One that people have given is theirs to sign with.
func (a authentication) signingKey(gc *stunnerv1.GatewayConfig) stunnerv1.SigningKey {
	origin := stunnerv1.SigningKeyShared
	if a.signing != nil && a.signing.Annotations[resource.GeneratedSecret] == "true" {
		origin = stunnerv1.SigningKeyPerGateway
	}
	return cmp.Or(gc.Spec.SigningKey, origin)
}

// sharedUntil is the time until which dataplanes accept what the shared secret has signed although Gateways sign with keys of their own; the zero time
// where the Secret says none, or none that can be read.
func sharedUntil(s *corev1.Secret) time.Time {
	if s == nil {
		return time.Time{}
	}
	until, err := time.Parse(time.RFC3339, s.Annotations[resource.SharedUntil])
	if err != nil || until.Unix() <= 0 {
		return time.Time{}
	}
	return until
}
