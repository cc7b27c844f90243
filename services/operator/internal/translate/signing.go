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

// RootKey is the key in an authentication Secret whose value is the root from which the signing keys of Gateways are
// derived. If RootKey is absent, the signing keys are derived from the shared secret. The root is not part of any
// config, so a dataplane cannot derive the signing key of another Gateway.
const RootKey = "root"

// forGateway returns the auth section of one Gateway. If spec.signingKey or its default is PerGateway, a key derived
// for the Gateway replaces the shared secret. Until the time in annotation SharedUntil, the shared secret is accepted
// as well, so that credentials that were signed with the shared secret stay valid.
func (a authentication) forGateway(
	gateway types.NamespacedName, gc *stunnerv1.GatewayConfig,
) (config.Auth, condition.Finding) {
	shared, signs := a.Credentials[config.KeySecret]
	if !signs || gc == nil || a.signingKey(gc) != stunnerv1.SigningKeyPerGateway {
		return a.Auth, condition.Finding{}
	}
	root := shared
	if a.signing != nil {
		if r := secretValueOf(a.signing, RootKey); r != nil && r.Secret != "" {
			root = r.Secret
		}
	}
	own, err := root.Derive(gateway.String())
	if err != nil {
		field := condition.InSpec(resource.KindGatewayConfig, resource.KeyOf(gc).String(), "signingKey")
		return a.Auth, condition.CredentialUnreadable(field, err)
	}
	auth := a.Auth
	auth.Credentials[config.KeySecret] = own
	if until := sharedUntil(a.signing); !until.IsZero() {
		auth.Former = &config.FormerSecret{Secret: shared, Until: until.Unix()}
	}
	return auth, condition.Finding{}
}

// signingKey returns spec.signingKey or its default. The default is PerGateway for a Secret that the operator
// generated, because no user signs credentials with it. For other Secrets it is Shared, because users may sign
// credentials with them.
func (a authentication) signingKey(gc *stunnerv1.GatewayConfig) stunnerv1.SigningKey {
	origin := stunnerv1.SigningKeyShared
	if a.signing != nil && a.signing.Annotations[resource.GeneratedSecret] == "true" {
		origin = stunnerv1.SigningKeyPerGateway
	}
	return cmp.Or(gc.Spec.SigningKey, origin)
}

// sharedUntil returns the time until which Gateways with signing keys of their own also accept credentials that are
// signed with the shared secret. It is the annotation SharedUntil of the Secret; zero if the annotation is absent or
// invalid.
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
