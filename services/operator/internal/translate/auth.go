package translate

import (
	"cmp"
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// authOf returns who may use the Gateways of a GatewayConfig. Every value of the result is there and not empty, or there is a finding.
func authOf(v *resource.View, gc *stunnerv1.GatewayConfig) (config.Auth, condition.Finding) {
	if gc == nil {
		return config.Auth{}, condition.Finding{}
	}
	auth := config.Auth{Realm: cmp.Or(gc.Spec.Realm, stunnerv1.DefaultRealm)}
	if gc.Spec.AuthLifetime != nil {
		auth.Lifetime = *gc.Spec.AuthLifetime
	}
	auth.SessionGrace, auth.CredentialOverlap = graceOf(gc), overlapOf(gc)
	if config.CheckRealm(auth.Realm) != nil {
		return auth, condition.RealmInvalid(resource.KeyOf(gc).String())
	}
	if gc.Spec.STUNMode {
		auth.Type = config.AuthNone
		return auth, condition.Finding{}
	}
	m, unfit := inlineMaterial(v, gc)
	if gc.Spec.AuthRef != nil {
		m, unfit = secretMaterial(v, gc)
	}
	if !unfit.OK() {
		return auth, unfit
	}
	return m.auth(auth)
}

// material is what authentication is made of, wherever it was found: a value that is nil was not there at all.
type material struct {
	authType string
	username *credential.Secret
	password *credential.Secret
	secret   *credential.Secret
	// where names a field for a message.
	where func(field string) string
	// absent is the reason of a field that is not there.
	absent string
}

// auth fills in what the authentication type needs.
func (m material) auth(auth config.Auth) (config.Auth, condition.Finding) {
	switch strings.ToLower(m.authType) {
	case "plaintext", "static":
		auth.Type = config.AuthStatic
		return m.pair(auth)
	case "ephemeral", "longterm", "timewindowed":
		auth.Type = config.AuthEphemeral
		return m.signed(auth)
	case "none":
		auth.Type = config.AuthNone
		return auth, condition.Finding{}
	}
	return auth, condition.AuthTypeUnknown(m.where("authType"), m.authType)
}

// pair is one user name with one password.
func (m material) pair(auth config.Auth) (config.Auth, condition.Finding) {
	unfit := first(m.need("userName", m.username), m.need("password", m.password))
	if !unfit.OK() {
		return auth, unfit
	}
	auth.Credentials = map[string]credential.Secret{config.KeyUsername: *m.username, config.KeyPassword: *m.password}
	return auth, condition.Finding{}
}

// signed is a shared secret. Where only a password is given, long-term is meant in both of its senses: the password signs ephemeral
// credentials, and the plain pair is good as well.
func (m material) signed(auth config.Auth) (config.Auth, condition.Finding) {
	if m.secret != nil || m.password == nil {
		auth.Credentials = map[string]credential.Secret{}
		unfit := m.need("sharedSecret", m.secret)
		if unfit.OK() {
			auth.Credentials[config.KeySecret] = *m.secret
		}
		return auth, unfit
	}
	if unfit := m.need("password", m.password); !unfit.OK() {
		return auth, unfit
	}
	auth.Credentials = map[string]credential.Secret{config.KeySecret: *m.password}
	if m.username == nil {
		return auth, condition.Finding{}
	}
	auth.Credentials[config.KeyUsername], auth.Credentials[config.KeyPassword] = *m.username, *m.password
	return auth, m.need("userName", m.username)
}

// need refuses a value that is absent or empty: an empty password would let everyone in.
func (m material) need(field string, value *credential.Secret) condition.Finding {
	switch {
	case value == nil:
		return condition.CredentialMissing(m.where(field), m.authType).As(m.absent)
	case *value == "":
		return condition.CredentialEmpty(m.where(field))
	}
	return condition.Finding{}
}

// inlineMaterial reads the GatewayConfig's own fields, which may in turn name keys of Secrets.
func inlineMaterial(v *resource.View, gc *stunnerv1.GatewayConfig) (material, condition.Finding) {
	m := material{
		authType: string(cmp.Or(gc.Spec.AuthType, stunnerv1.DefaultAuthType)),
		where:    func(field string) string { return condition.InlineField(resource.KeyOf(gc).String(), field) },
		absent:   condition.ReasonInvalidCredentials,
	}
	var username, password, secret condition.Finding
	m.username, username = inlineValue(v, gc, "userName", gc.Spec.UserName)
	m.password, password = inlineValue(v, gc, "password", gc.Spec.Password)
	m.secret, secret = inlineValue(v, gc, "sharedSecret", gc.Spec.SharedSecret)
	return m, first(username, password, secret)
}

func inlineValue(v *resource.View, gc *stunnerv1.GatewayConfig, field string, value *stunnerv1.SecretValue) (*credential.Secret, condition.Finding) {
	where := condition.InlineField(resource.KeyOf(gc).String(), field)
	if value == nil {
		return nil, condition.Finding{}
	}
	if err := value.Err(); err != nil {
		return nil, condition.CredentialUnreadable(where, err)
	}
	if inline, ok := value.Inline(); ok {
		return &inline, condition.Finding{}
	}
	ref, _ := value.Ref(field)
	source := secretSource{view: v, owner: gc, where: where, key: types.NamespacedName{
		Namespace: cmp.Or(ref.Namespace, gc.Namespace), Name: ref.Name,
	}}
	if unfit := sourceRules.judge(source); !unfit.OK() {
		return nil, unfit
	}
	data := source.data(ref.Key)
	switch {
	case data == nil:
		return nil, condition.SecretKeyMissing(where, source.key.String(), ref.Key)
	case *data == "":
		return nil, condition.CredentialEmpty(condition.SecretField(source.key.String(), ref.Key))
	}
	return data, condition.Finding{}
}

// secretMaterial reads the Secret that authRef names. It replaces the inline fields, it does not complete them.
func secretMaterial(v *resource.View, gc *stunnerv1.GatewayConfig) (material, condition.Finding) {
	ref := gc.Spec.AuthRef
	source := secretSource{view: v, owner: gc, where: condition.InlineField(resource.KeyOf(gc).String(), "authRef"), key: types.NamespacedName{
		Namespace: string(valueOr(ref.Namespace, "")), Name: string(ref.Name),
	}}
	source.group, source.kind = string(valueOr(ref.Group, "")), string(valueOr(ref.Kind, "Secret"))
	source.key.Namespace = cmp.Or(source.key.Namespace, gc.Namespace)
	if unfit := sourceRules.judge(source); !unfit.OK() {
		return material{}, unfit
	}
	m := material{
		authType: string(config.AuthStatic),
		username: source.data("username"),
		password: source.data("password"),
		where:    func(field string) string { return condition.SecretField(source.key.String(), secretKeys[field]) },
		absent:   condition.ReasonSecretKeyNotFound,
	}
	if t := source.data("type"); t != nil {
		m.authType = strings.TrimSpace(string(*t))
	}
	m.secret = source.data("secret")
	if m.secret == nil {
		m.secret = source.data("sharedSecret")
	}
	return m, condition.Finding{}
}

// secretKeys are the keys of an authentication Secret, by the field of a GatewayConfig that says the same.
var secretKeys = map[string]string{"authType": "type", "userName": "username", "password": "password", "sharedSecret": "secret"}

// secretSource is a reference from a GatewayConfig to a Secret.
type secretSource struct {
	view        *resource.View
	owner       *stunnerv1.GatewayConfig
	where       string
	group, kind string
	key         types.NamespacedName
}

var sourceRules = rules[secretSource]{secretSource.isSecret, secretSource.isGranted, secretSource.exists}

// isSecret takes the group "v1", which people write because it stands in the apiVersion of a Secret.
func (s secretSource) isSecret() condition.Finding {
	if (s.group != "" && s.group != "v1") || cmp.Or(s.kind, "Secret") != "Secret" {
		return condition.SecretKind(s.where, s.group, s.kind)
	}
	return condition.Finding{}
}

func (s secretSource) isGranted() condition.Finding {
	from := resource.Referrer{Group: stunnerv1.GroupName, Kind: "GatewayConfig", Namespace: s.owner.Namespace}
	to := resource.Target{Kind: "Secret", NamespacedName: s.key}
	if s.owner.Spec.RequireReferenceGrants && !s.view.Granted(from, to) {
		return condition.NotGranted(s.where, "Secret "+s.key.String(), s.key.Namespace)
	}
	return condition.Finding{}
}

func (s secretSource) exists() condition.Finding {
	if s.view.Secret(s.key) == nil {
		return condition.SecretMissing(s.where, s.key.String())
	}
	return condition.Finding{}
}

// data returns the value of a key, nil when there is none. A trailing line break is dropped: files and shells add them to passwords.
func (s secretSource) data(key string) *credential.Secret {
	data, ok := s.view.Secret(s.key).Data[key]
	if !ok {
		return nil
	}
	value := credential.Secret(strings.TrimRight(string(data), "\r\n"))
	return &value
}

// valueOr returns what p points at, or absent.
func valueOr[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// graceOf is the session grace of a GatewayConfig in whole seconds. What cannot be read as a duration is no grace: the API server does not
// let it in, and an error must not lengthen a session.
func graceOf(gc *stunnerv1.GatewayConfig) int32 {
	return valueOr(secondsOf(gc.Spec.SessionGrace), 0)
}

// overlapOf is the credential overlap of a GatewayConfig in whole seconds, nil for the default. What cannot be read as a duration is the default: an
// error must not end sessions.
func overlapOf(gc *stunnerv1.GatewayConfig) *int32 {
	overlap := secondsOf(gc.Spec.CredentialOverlap)
	if overlap != nil && *overlap == config.DefaultCredentialOverlap {
		return nil
	}
	return overlap
}

// secondsOf is a duration in whole seconds, nil where there is none, or none that can be read.
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
