package translate

import (
	"cmp"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// authentication is the auth section of a config, as far as it is the same for all Gateways of a GatewayConfig.
// forGateway adds the part that differs.
type authentication struct {
	config.Auth
	// signing is the Secret that holds the shared secret; nil if the shared secret is inline in the GatewayConfig.
	signing *corev1.Secret
}

// authOf returns the authentication of a GatewayConfig. If there is no finding, all credentials that the authentication
// type needs are set and not empty.
func authOf(v *resource.View, gc *stunnerv1.GatewayConfig, opt Options) (authentication, condition.Finding) {
	if gc == nil {
		return authentication{}, condition.Finding{}
	}
	auth := config.Auth{Realm: cmp.Or(gc.Spec.Realm, stunnerv1.DefaultRealm)}
	if gc.Spec.AuthLifetime != nil {
		auth.Lifetime = *gc.Spec.AuthLifetime
	}
	auth.SessionGrace, auth.CredentialOverlap = graceOf(gc), overlapOf(gc)
	if config.CheckRealm(auth.Realm) != nil {
		return authentication{Auth: auth}, condition.RealmInvalid(resource.KeyOf(gc).String())
	}
	if gc.Spec.STUNMode {
		auth.Type = config.AuthNone
		return authentication{Auth: auth}, condition.Finding{}
	}
	read := inlineMaterial
	if gc.Spec.AuthRef != nil {
		read = secretMaterial
	}
	m, finding := read(v, gc, opt)
	if !finding.OK() {
		return authentication{Auth: auth}, finding
	}
	return m.auth(auth)
}

type secretValue struct {
	credential.Secret
	// from is the Secret from which the credential was read; nil if the credential is inline in the GatewayConfig.
	from *corev1.Secret
}

// material is the authentication type and the credentials, read from the GatewayConfig or from the Secret of
// spec.authRef. A credential that is not set is nil.
type material struct {
	authType string
	username *secretValue
	password *secretValue
	secret   *secretValue
	// where returns how messages refer to a field.
	where func(field string) condition.Place
	// absent is the condition reason if a credential is not set although the authentication type needs it.
	absent string
}

// auth returns the given auth section with the authentication type and the credentials that this type needs.
func (m material) auth(auth config.Auth) (authentication, condition.Finding) {
	switch m.authType = strings.ToLower(m.authType); m.authType {
	case "plaintext", "static":
		auth.Type = config.AuthStatic
		return m.static(auth)
	case "ephemeral", "longterm", "timewindowed":
		auth.Type = config.AuthEphemeral
		return m.ephemeral(auth)
	case "none":
		auth.Type = config.AuthNone
		return authentication{Auth: auth}, condition.Finding{}
	}
	return authentication{Auth: auth}, condition.AuthTypeUnknown(m.where("authType"))
}

// static returns static authentication, which needs a user name and a password.
func (m material) static(auth config.Auth) (authentication, condition.Finding) {
	finding := first(m.require("userName", m.username), m.require("password", m.password))
	if !finding.OK() {
		return authentication{Auth: auth}, finding
	}
	auth.Credentials = map[string]credential.Secret{
		config.KeyUsername: m.username.Secret, config.KeyPassword: m.password.Secret,
	}
	return authentication{Auth: auth}, condition.Finding{}
}

// ephemeral returns authentication with time-limited credentials, which need a shared secret. If a password but no
// shared secret is set, the password is used as the shared secret. If a user name is set too, it is accepted with the
// password as a static pair, because users set authentication type "longterm" for both static and time-limited
// credentials.
func (m material) ephemeral(auth config.Auth) (authentication, condition.Finding) {
	auth.Credentials = map[string]credential.Secret{}
	if m.secret != nil || m.password == nil {
		if finding := m.require("sharedSecret", m.secret); !finding.OK() {
			return authentication{Auth: auth}, finding
		}
		auth.Credentials[config.KeySecret] = m.secret.Secret
		return authentication{auth, m.secret.from}, condition.Finding{}
	}
	finding := m.require("password", m.password)
	if finding.OK() && m.username != nil {
		finding = m.require("userName", m.username)
	}
	if !finding.OK() {
		return authentication{Auth: auth}, finding
	}
	auth.Credentials[config.KeySecret] = m.password.Secret
	if m.username != nil {
		auth.Credentials[config.KeyUsername], auth.Credentials[config.KeyPassword] = m.username.Secret, m.password.Secret
	}
	return authentication{auth, m.password.from}, condition.Finding{}
}

// maxCredential is the maximum length of a user name, password or shared secret in bytes. Each config contains them.
const maxCredential = 4 << 10

// require returns a finding for a credential that is absent, empty, too long or not UTF-8. With an empty password,
// every client would be let in. The encoding of a config replaces each byte that is not UTF-8 by the same character, so
// that a binary secret would be another one, and easier to guess.
func (m material) require(field string, v *secretValue) condition.Finding {
	switch {
	case v == nil:
		return condition.CredentialMissing(m.where(field), m.authType).As(m.absent)
	case v.Secret == "":
		return condition.CredentialEmpty(m.where(field))
	case len(v.Secret) > maxCredential:
		return condition.CredentialTooLong(m.where(field), maxCredential)
	case !utf8.ValidString(string(v.Secret)):
		return condition.CredentialNotText(m.where(field))
	}
	return condition.Finding{}
}

// inlineMaterial reads the credentials from the fields of the GatewayConfig. Each field is a string or a reference to a
// key of a Secret.
func inlineMaterial(v *resource.View, gc *stunnerv1.GatewayConfig, opt Options) (material, condition.Finding) {
	m := material{
		authType: string(cmp.Or(gc.Spec.AuthType, stunnerv1.DefaultAuthType)),
		where: func(field string) condition.Place {
			return condition.InSpec(resource.KindGatewayConfig, resource.KeyOf(gc).String(), field)
		},
		absent: condition.ReasonInvalidCredentials,
	}
	var username, password, secret condition.Finding
	m.username, username = inlineValue(v, gc, "userName", gc.Spec.UserName, opt)
	m.password, password = inlineValue(v, gc, "password", gc.Spec.Password, opt)
	m.secret, secret = inlineValue(v, gc, "sharedSecret", gc.Spec.SharedSecret, opt)
	return m, first(username, password, secret)
}

func inlineValue(
	v *resource.View, gc *stunnerv1.GatewayConfig, field string, written *stunnerv1.SecretValue, opt Options,
) (*secretValue, condition.Finding) {
	where := condition.InSpec(resource.KindGatewayConfig, resource.KeyOf(gc).String(), field)
	if written == nil {
		return nil, condition.Finding{}
	}
	if err := written.Err(); err != nil {
		return nil, condition.CredentialUnreadable(where, err)
	}
	if inline, ok := written.Inline(); ok {
		return &secretValue{Secret: trimmed(string(inline))}, condition.Finding{}
	}
	ref, _ := written.Ref(field)
	key := types.NamespacedName{Namespace: cmp.Or(ref.Namespace, gc.Namespace), Name: ref.Name}
	source := secretSource{view: v, owner: gc, opt: opt, where: where, key: key}
	if finding := sourceRules.firstFinding(source); !finding.OK() {
		return nil, finding
	}
	data := source.data(ref.Key)
	switch {
	case data == nil:
		return nil, condition.SecretKeyMissing(where, source.key.String(), ref.Key)
	case data.Secret == "":
		return nil, condition.CredentialEmpty(condition.SecretField(source.key.String(), ref.Key))
	}
	return data, condition.Finding{}
}

// secretMaterial reads the credentials from the Secret of spec.authRef. The credential fields of the GatewayConfig are
// then ignored.
func secretMaterial(v *resource.View, gc *stunnerv1.GatewayConfig, opt Options) (material, condition.Finding) {
	ref := gc.Spec.AuthRef
	where := condition.InSpec(resource.KindGatewayConfig, resource.KeyOf(gc).String(), "authRef")
	namespace := cmp.Or(string(ptr.Deref(ref.Namespace, "")), gc.Namespace)
	source := secretSource{
		view: v, owner: gc, opt: opt, where: where,
		group: string(ptr.Deref(ref.Group, "")), kind: string(ptr.Deref(ref.Kind, "Secret")),
		key: types.NamespacedName{Namespace: namespace, Name: string(ref.Name)},
	}
	if finding := sourceRules.firstFinding(source); !finding.OK() {
		return material{}, finding
	}
	m := material{
		authType: string(config.AuthStatic),
		username: source.data("username"),
		password: source.data("password"),
		secret:   cmp.Or(source.data("secret"), source.data("sharedSecret")),
		where: func(field string) condition.Place {
			return condition.SecretField(source.key.String(), secretKeys[field])
		},
		absent: condition.ReasonSecretKeyNotFound,
	}
	if t := source.data("type"); t != nil {
		m.authType = strings.TrimSpace(string(t.Secret))
	}
	return m, condition.Finding{}
}

// secretKeys maps fields of a GatewayConfig to the keys of an authentication Secret.
var secretKeys = map[string]string{
	"authType": "type", "userName": "username", "password": "password", "sharedSecret": "secret",
}

// secretSource is a reference from a GatewayConfig to a Secret.
type secretSource struct {
	view        *resource.View
	owner       *stunnerv1.GatewayConfig
	opt         Options
	where       condition.Place
	group, kind string
	key         types.NamespacedName
}

// sourceRules check a reference from a GatewayConfig to a Secret. They check the existence of the Secret last: without
// a ReferenceGrant, the finding must not reveal whether the Secret exists.
var sourceRules = rules[secretSource]{secretSource.isSecret, secretSource.isGranted, secretSource.exists}

// isSecret checks that group and kind of a reference identify a Secret. It also accepts group "v1", because users copy
// it from the apiVersion of a Secret.
func (s secretSource) isSecret() condition.Finding {
	if (s.group != "" && s.group != "v1") || cmp.Or(s.kind, "Secret") != "Secret" {
		return condition.SecretKind(s.where, s.group, s.kind)
	}
	return condition.Finding{}
}

// isGranted requires a ReferenceGrant for a Secret in another namespace, even if spec.requireReferenceGrants is false,
// because the author of the GatewayConfig may be a tenant. A trusted GatewayConfig needs none.
func (s secretSource) isGranted() condition.Finding {
	from := resource.Referrer{
		Group: stunnerv1.GroupName, Kind: resource.KindGatewayConfig, Namespace: s.owner.Namespace,
	}
	to := resource.Target{Kind: "Secret", NamespacedName: s.key}
	if s.view.Granted(from, to) || s.trusted() {
		return condition.Finding{}
	}
	return condition.NotGranted(s.where, "Secret "+s.key.String(), s.key.Namespace)
}

// trusted reports whether a GatewayConfig may refer to Secrets of other namespaces without a ReferenceGrant. It may if
// Options.TrustClassSecrets is set and a GatewayClass of this controller refers to the GatewayConfig.
func (s secretSource) trusted() bool {
	return s.opt.TrustClassSecrets && ofOurClass(s.view, resource.KeyOf(s.owner), s.opt)
}

func (s secretSource) exists() condition.Finding {
	secret := s.view.Secret(s.key)
	if secret == nil {
		return condition.SecretMissing(s.where, s.key.String())
	}
	if reason := resource.Empty(secret); reason != "" {
		return condition.SecretUnread(s.where, s.key.String(), reason)
	}
	return condition.Finding{}
}

// data returns the value of a key of the Secret, or nil.
func (s secretSource) data(key string) *secretValue { return secretValueOf(s.view.Secret(s.key), key) }

// secretValueOf returns the value of a key of a Secret, or nil. Trailing line breaks are removed, because editors and
// shells add them.
func secretValueOf(from *corev1.Secret, key string) *secretValue {
	data, ok := from.Data[key]
	if !ok {
		return nil
	}
	return &secretValue{trimmed(string(data)), from}
}

func trimmed(value string) credential.Secret {
	return credential.Secret(strings.TrimRight(value, "\r\n"))
}

// graceOf returns spec.sessionGrace in whole seconds. An invalid duration, which the API server rejects, counts as 0,
// so that an error never lengthens a session.
func graceOf(gc *stunnerv1.GatewayConfig) int32 {
	return ptr.Deref(secondsOf(gc.Spec.SessionGrace), 0)
}

// overlapOf returns spec.credentialOverlap in whole seconds, or nil for the default. An invalid duration, which the API
// server rejects, counts as the default, so that an error never ends sessions.
func overlapOf(gc *stunnerv1.GatewayConfig) *int32 {
	overlap := secondsOf(gc.Spec.CredentialOverlap)
	if overlap != nil && *overlap == config.DefaultCredentialOverlap {
		return nil
	}
	return overlap
}

// secondsOf returns a duration in whole seconds, nil if it is absent or invalid.
func secondsOf(d *gwapiv1.Duration) *int32 {
	if d == nil {
		return nil
	}
	parsed, err := time.ParseDuration(string(*d))
	if err != nil || parsed < 0 {
		return nil
	}
	return new(int32(min(parsed/time.Second, math.MaxInt32)))
}
