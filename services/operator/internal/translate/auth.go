package translate

import (
	"cmp"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// authentication says who may use the Gateways of a GatewayConfig, before it is made that of one Gateway.
type authentication struct {
	config.Auth
	// signing is the Secret that the shared secret comes from; nil when it stands in the GatewayConfig.
	signing *corev1.Secret
}

// authOf returns who may use the Gateways of a GatewayConfig. Every value of the result is there and not empty, or there is a finding.
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
	m, unfit := read(v, gc, opt)
	if !unfit.OK() {
		return authentication{Auth: auth}, unfit
	}
	return m.auth(auth)
}

// value is one value of what authentication is made of, and the Secret that it comes from, nil for none.
type value struct {
	credential.Secret
	from *corev1.Secret
}

// material is what authentication is made of, wherever it was found: a value that is nil was not there at all.
type material struct {
	authType string
	username *value
	password *value
	secret   *value
	// where names a field for a message.
	where func(field string) string
	// absent is the reason of a field that is not there.
	absent string
}

// auth fills in what the authentication type needs.
func (m material) auth(auth config.Auth) (authentication, condition.Finding) {
	switch m.authType = strings.ToLower(m.authType); m.authType {
	case "plaintext", "static":
		auth.Type = config.AuthStatic
		return m.pair(auth)
	case "ephemeral", "longterm", "timewindowed":
		auth.Type = config.AuthEphemeral
		return m.signed(auth)
	case "none":
		auth.Type = config.AuthNone
		return authentication{Auth: auth}, condition.Finding{}
	}
	return authentication{Auth: auth}, condition.AuthTypeUnknown(m.where("authType"))
}

// pair is one user name with one password.
func (m material) pair(auth config.Auth) (authentication, condition.Finding) {
	unfit := first(m.need("userName", m.username), m.need("password", m.password))
	if !unfit.OK() {
		return authentication{Auth: auth}, unfit
	}
	auth.Credentials = map[string]credential.Secret{config.KeyUsername: m.username.Secret, config.KeyPassword: m.password.Secret}
	return authentication{Auth: auth}, condition.Finding{}
}

// signed is a shared secret. Where only a password is given, long-term is meant in both of its senses: the password signs ephemeral
// credentials, and the plain pair is good as well.
func (m material) signed(auth config.Auth) (authentication, condition.Finding) {
	auth.Credentials = map[string]credential.Secret{}
	if m.secret != nil || m.password == nil {
		if unfit := m.need("sharedSecret", m.secret); !unfit.OK() {
			return authentication{Auth: auth}, unfit
		}
		auth.Credentials[config.KeySecret] = m.secret.Secret
		return authentication{auth, m.secret.from}, condition.Finding{}
	}
	unfit := m.need("password", m.password)
	if unfit.OK() && m.username != nil {
		unfit = m.need("userName", m.username)
	}
	if !unfit.OK() {
		return authentication{Auth: auth}, unfit
	}
	auth.Credentials[config.KeySecret] = m.password.Secret
	if m.username != nil {
		auth.Credentials[config.KeyUsername], auth.Credentials[config.KeyPassword] = m.username.Secret, m.password.Secret
	}
	return authentication{auth, m.password.from}, condition.Finding{}
}

// need refuses a value that is absent or empty: an empty password would let everyone in.
func (m material) need(field string, v *value) condition.Finding {
	switch {
	case v == nil:
		return condition.CredentialMissing(m.where(field), m.authType).As(m.absent)
	case v.Secret == "":
		return condition.CredentialEmpty(m.where(field))
	}
	return condition.Finding{}
}

// inlineMaterial reads the GatewayConfig's own fields, which may in turn name keys of Secrets.
func inlineMaterial(v *resource.View, gc *stunnerv1.GatewayConfig, opt Options) (material, condition.Finding) {
	m := material{
		authType: string(cmp.Or(gc.Spec.AuthType, stunnerv1.DefaultAuthType)),
		where:    func(field string) string { return condition.InlineField(resource.KeyOf(gc).String(), field) },
		absent:   condition.ReasonInvalidCredentials,
	}
	var username, password, secret condition.Finding
	m.username, username = inlineValue(v, gc, "userName", gc.Spec.UserName, opt)
	m.password, password = inlineValue(v, gc, "password", gc.Spec.Password, opt)
	m.secret, secret = inlineValue(v, gc, "sharedSecret", gc.Spec.SharedSecret, opt)
	return m, first(username, password, secret)
}

func inlineValue(v *resource.View, gc *stunnerv1.GatewayConfig, field string, written *stunnerv1.SecretValue, opt Options) (*value, condition.Finding) {
	where := condition.InlineField(resource.KeyOf(gc).String(), field)
	if written == nil {
		return nil, condition.Finding{}
	}
	if err := written.Err(); err != nil {
		return nil, condition.CredentialUnreadable(where, err)
	}
	if inline, ok := written.Inline(); ok {
		return &value{Secret: inline}, condition.Finding{}
	}
	ref, _ := written.Ref(field)
	source := secretSource{view: v, owner: gc, opt: opt, where: where, key: types.NamespacedName{
		Namespace: cmp.Or(ref.Namespace, gc.Namespace), Name: ref.Name,
	}}
	if unfit := sourceRules.judge(source); !unfit.OK() {
		return nil, unfit
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

// secretMaterial reads the Secret that authRef names. It replaces the inline fields, it does not complete them.
func secretMaterial(v *resource.View, gc *stunnerv1.GatewayConfig, opt Options) (material, condition.Finding) {
	ref := gc.Spec.AuthRef
	where := condition.InlineField(resource.KeyOf(gc).String(), "authRef")
	source := secretSource{view: v, owner: gc, opt: opt, where: where, key: types.NamespacedName{
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
		m.authType = strings.TrimSpace(string(t.Secret))
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
	opt         Options
	where       string
	group, kind string
	key         types.NamespacedName
}

// sourceRules ask for the Secret last: without a grant the finding is the same whether it exists or not.
var sourceRules = rules[secretSource]{secretSource.isSecret, secretSource.isGranted, secretSource.exists}

// isSecret takes the group "v1", which people write because it stands in the apiVersion of a Secret.
func (s secretSource) isSecret() condition.Finding {
	if (s.group != "" && s.group != "v1") || cmp.Or(s.kind, "Secret") != "Secret" {
		return condition.SecretKind(s.where, s.group, s.kind)
	}
	return condition.Finding{}
}

// isGranted wants a ReferenceGrant for a Secret of another namespace, whatever the GatewayConfig says: its author may be anybody.
func (s secretSource) isGranted() condition.Finding {
	from := resource.Referrer{Group: stunnerv1.GroupName, Kind: "GatewayConfig", Namespace: s.owner.Namespace}
	to := resource.Target{Kind: "Secret", NamespacedName: s.key}
	if s.view.Granted(from, to) || s.trusted() {
		return condition.Finding{}
	}
	return condition.NotGranted(s.where, "Secret "+s.key.String(), s.key.Namespace)
}

// trusted tells whether a GatewayClass of ours names the GatewayConfig, and the operator is told to trust those.
func (s secretSource) trusted() bool {
	if !s.opt.TrustClassSecrets {
		return false
	}
	for name := range s.view.ClassesOfConfig(resource.KeyOf(s.owner)) {
		if class := s.view.Class(name.Name); class != nil && string(class.Spec.ControllerName) == s.opt.ControllerName {
			return true
		}
	}
	return false
}

func (s secretSource) exists() condition.Finding {
	if s.view.Secret(s.key) == nil {
		return condition.SecretMissing(s.where, s.key.String())
	}
	return condition.Finding{}
}

// data returns the value of a key, nil when there is none.
func (s secretSource) data(key string) *value { return valueOf(s.view.Secret(s.key), key) }

// valueOf returns the value of a key of a Secret, nil when there is none. A trailing line break is dropped: files and shells add them to passwords.
func valueOf(from *corev1.Secret, key string) *value {
	data, ok := from.Data[key]
	if !ok {
		return nil
	}
	return &value{credential.Secret(strings.TrimRight(string(data), "\r\n")), from}
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
