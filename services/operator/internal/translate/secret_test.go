package translate_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// path is the way to a value in a type: indexes of fields, and elem for the target of a pointer or the first entry of a
// list.
type path []int

const elem = -1

// secretPaths returns the paths to every field of a type that may refer to a Secret. Types of Kubernetes itself are
// left out: the kubelet reads their Secrets, in the namespace of the pod.
func secretPaths(t *testing.T, of reflect.Type, at path) (all []path) {
	switch of {
	case reflect.TypeFor[stunnerv1.SecretValue](), reflect.TypeFor[gwapiv1.SecretObjectReference]():
		return []path{slices.Clone(at)}
	}
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice:
		return secretPaths(t, of.Elem(), append(at, elem))
	case reflect.Struct:
		if strings.HasPrefix(of.PkgPath(), "k8s.io/") {
			return nil
		}
		if strings.Contains(of.Name(), "Secret") {
			t.Fatalf("type %s may name a Secret: have this test fill it in", of)
		}
		for i := range of.NumField() {
			if of.Field(i).IsExported() {
				all = append(all, secretPaths(t, of.Field(i).Type, append(at, i))...)
			}
		}
	}
	return all
}

// follow returns the value at the end of a path, and creates missing values on the way.
func follow(v reflect.Value, p path) reflect.Value {
	for _, step := range p {
		switch {
		case step != elem:
			v = v.Field(step)
		case v.Kind() == reflect.Slice:
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			v = v.Index(0)
		default:
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
	}
	return v
}

// name sets a field to a reference to a Secret.
func name(v reflect.Value, secret types.NamespacedName, key string) {
	if v.Type() == reflect.TypeFor[stunnerv1.SecretValue]() {
		v.Set(reflect.ValueOf(*stunnerv1.SecretFrom(
			stunnerv1.SecretKeyReference{Name: secret.Name, Namespace: secret.Namespace, Key: key},
		)))
		return
	}
	v.Set(reflect.ValueOf(gwapiv1.SecretObjectReference{
		Name: gwapiv1.ObjectName(secret.Name), Namespace: new(gwapiv1.Namespace(secret.Namespace)),
	}))
}

// keys are all keys of Secrets that the translation reads.
var keys = []string{
	"type", "username", "userName", "password", "secret", "sharedSecret", "root", "tls.crt", "crt", "cert", "tls.key",
	"key", "token",
}

// marked returns a Secret with a marker under every key except the type, which selects the other keys. PEM blocks have
// markers in their names as well.
func marked(key types.NamespacedName, authType string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string][]byte{},
	}
	for _, k := range keys {
		s.Data[k] = []byte(marker(key) + "-" + k)
	}
	for _, k := range []string{"tls.crt", "tls.key"} {
		s.Data[k] = fmt.Appendf(nil, "-----BEGIN %s-----\nAAAA\n-----END %[1]s-----\n", strings.ToUpper(marker(key)))
	}
	if authType != "" {
		s.Data["type"] = []byte(authType)
	}
	return s
}

// marker returns the part that all values of a Secret have in common.
func marker(secret types.NamespacedName) string { return "mark7q" + secret.Namespace + secret.Name }

// shows reports whether a text contains a marker in any encoding of a config.
func shows(text string, secret types.NamespacedName) bool {
	m := marker(secret)
	forms := []string{m, hex.EncodeToString([]byte(m))}
	for offset := range 3 { // base64 depends on the offset of the marker
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + m))
		forms = append(forms, encoded[4:len(encoded)-4])
	}
	return slices.ContainsFunc(
		forms, func(form string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(form)) },
	)
}

// attack is a Gateway of a tenant with its own GatewayConfig, beside a Gateway of another tenant. One field of the
// Gateway or of the GatewayConfig refers to a Secret.
type attack struct {
	field    string
	config   *stunnerv1.GatewayConfig
	gateway  *gwapiv1.Gateway
	asClass  bool
	authType stunnerv1.AuthType
}

// attacks returns one attack for each field of each kind that tenants write, and for each authentication type.
func attacks(t *testing.T, secret types.NamespacedName, keys ...string) (all []attack) {
	t.Helper()
	blank := func(authType stunnerv1.AuthType) attack {
		gc := &stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "own"}}
		gc.Spec.AuthType, gc.Spec.Realm = authType, "tenant.example.net"
		gw := &gwapiv1.Gateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "gw"},
			Spec:       gwapiv1.GatewaySpec{GatewayClassName: "edge"},
		}
		gw.Spec.Infrastructure = &gwapiv1.GatewayInfrastructure{
			ParametersRef: &gwapiv1.LocalParametersReference{
				Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "own",
			},
		}
		gw.Spec.Listeners = []gwapiv1.Listener{
			{Name: "tls", Port: 443, Protocol: "TURN-TLS"}, {Name: "udp", Port: 3478, Protocol: "TURN-UDP"},
		}
		return attack{config: gc, gateway: gw, authType: authType}
	}
	configPaths := secretPaths(t, reflect.TypeFor[stunnerv1.GatewayConfigSpec](), nil)
	gatewayPaths := secretPaths(t, reflect.TypeFor[gwapiv1.GatewaySpec](), nil)
	if len(configPaths) < 4 || len(gatewayPaths) < 1 {
		t.Fatalf("%d and %d fields may name a Secret", len(configPaths), len(gatewayPaths))
	}
	for _, kind := range []reflect.Type{
		reflect.TypeFor[stunnerv1.StaticServiceSpec](), reflect.TypeFor[stunnerv1.UDPRouteSpec](),
		reflect.TypeFor[stunnerv1.DataplaneSpec](),
	} {
		if paths := secretPaths(t, kind, nil); len(paths) > 0 {
			t.Fatalf("%s may name a Secret: have this test fill it in", kind)
		}
	}
	for _, authType := range []stunnerv1.AuthType{
		stunnerv1.AuthStatic, stunnerv1.AuthEphemeral, stunnerv1.AuthNone, "kerberos",
	} {
		for _, p := range configPaths {
			for _, key := range keys {
				a := blank(authType)
				spec := reflect.ValueOf(&a.config.Spec).Elem()
				for _, other := range configPaths { // some values are used only together with another credential
					if v := follow(spec, other[:1]); v.Type() == reflect.TypeFor[*stunnerv1.SecretValue]() {
						v.Set(reflect.ValueOf(stunnerv1.InlineSecret("a-value-of-its-own")))
					}
				}
				name(follow(spec, p), secret, key)
				a.field = spec.Type().Field(p[0]).Name + "/" + key
				all = append(all, a)
				a.asClass = true
				all = append(all, a)
				if follow(spec, p).Type() != reflect.TypeFor[stunnerv1.SecretValue]() {
					break // the field has no key
				}
			}
		}
		for i, p := range gatewayPaths {
			a := blank(authType)
			a.config.Spec.UserName, a.config.Spec.Password = stunnerv1.InlineSecret("guest"), stunnerv1.InlineSecret(
				"a-value-of-its-own",
			)
			name(follow(reflect.ValueOf(&a.gateway.Spec).Elem(), p), secret, "")
			a.field = fmt.Sprintf("field %d of a Gateway", i)
			all = append(all, a)
		}
	}
	return all
}

// view returns the cluster of an attack. The GatewayConfig of the tenant is its own, or the GatewayConfig of the class
// if the tenant may write a class.
func (a attack) view(secrets ...resource.Object) *resource.View {
	site := &stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "site"}}
	site.Spec.UserName, site.Spec.Password = stunnerv1.InlineSecret("caller"), stunnerv1.InlineSecret(
		"marzipan-and-rosewater",
	)
	other := &gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Namespace: "turn", Name: "other",
	}, Spec: gwapiv1.GatewaySpec{
		GatewayClassName: "edge", Listeners: []gwapiv1.Listener{{Name: "udp", Port: 3478, Protocol: "TURN-UDP"}},
	}}
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: gwapiv1.GatewayClassSpec{
		ControllerName: translate.DefaultControllerName,
		ParametersRef: &gwapiv1.ParametersReference{
			Group: stunnerv1.GroupName, Kind: "GatewayConfig", Namespace: new(gwapiv1.Namespace("turn")), Name: "site",
		},
	}}
	if a.asClass {
		class.Spec.ParametersRef.Namespace, class.Spec.ParametersRef.Name = new(gwapiv1.Namespace("tenant")), "own"
	}
	dataplane := &stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	return resource.NewView(append(secrets, site, other, class, dataplane, a.config, a.gateway))
}

// A config cannot contain bytes that are not UTF-8. A Gateway with such a credential is held, and the status does not
// quote it.
func TestABinaryCredentialIsRefused(t *testing.T) {
	for _, key := range []string{"secret", "password", "username"} {
		c := load(t, "testdata/a_secret_with_a_shared_secret_signs_credentials.txtar")
		gateway, v := types.NamespacedName{Namespace: "turn", Name: "lobby"}, c.view()
		for _, o := range c.objects {
			if s, is := o.(*corev1.Secret); is {
				s = s.DeepCopy()
				if key != "secret" {
					s.Data = map[string][]byte{"type": []byte("static"), "username": []byte("ann"), "password": []byte("pass")}
				}
				s.Data[key] = []byte("pass\xff\x00\xfe")
				v.Put(s)
			}
		}
		r := translate.Gateway(v, gateway, c.options)
		if text := fmt.Sprint(r.Status); r.Decision != translate.Held || !strings.Contains(text, "is not UTF-8") || strings.Contains(text, "pass\xff") {
			t.Errorf("%s: %s, %s", key, r.Decision, text)
		}
	}
}

// K-02: without a ReferenceGrant, no result discloses the content or the existence of a Secret of another namespace,
// and the translation does not look the Secret up. This applies to every field that may refer to a Secret.
func TestASecretWithoutAGrantIsNotRead(t *testing.T) {
	secret := types.NamespacedName{Namespace: "vault", Name: "gold"}
	opt := translate.DefaultOptions()
	opt.Now = now
	for _, a := range attacks(t, secret, "password", "token") {
		for _, authType := range []string{"static", ""} {
			for _, own := range []translate.OwnConfigs{translate.OwnConfigsRestricted, translate.OwnConfigsAllow} {
				opt.OwnConfigs = own
				told := resource.Facts{}
				with := everything(t, translateAll(a.view(marked(secret, authType)).Recording(told), opt))
				if shows(with, secret) {
					t.Fatalf("%s, %s: a value is shown:\n%s", a.field, a.authType, with)
				}
				if without := everything(t, translateAll(a.view(), opt)); with != without {
					t.Fatalf("%s, %s: it makes a difference whether the Secret exists", a.field, a.authType)
				}
				if slices.Contains(told.Secrets(), secret) {
					t.Fatalf("%s, %s: the Secret is asked for", a.field, a.authType)
				}
			}
		}
	}
}

// K-02: values of a Secret of the same namespace are in the configs of the Gateways whose GatewayConfig refers to it,
// and nowhere else: in no status, note or object, and in no other config.
func TestValuesOfSecretsStandInConfigsOnly(t *testing.T) {
	secret := types.NamespacedName{Namespace: "tenant", Name: "silver"}
	opt := translate.DefaultOptions()
	opt.Now = now
	used := 0
	for _, a := range attacks(t, secret, "username", "secret", "type") {
		for _, authType := range []string{"static", "ephemeral", ""} {
			for _, annotation := range []string{"", "true"} {
				s := marked(secret, authType)
				s.Annotations = map[string]string{
					resource.GeneratedSecret: annotation, resource.SharedUntil: "2031-05-05T00:00:00Z",
				}
				o := translateAll(a.view(s), opt)
				for i, r := range o.Gateways {
					if r.Config == nil {
						continue
					}
					for _, object := range append(r.ObjectsWith(r.Config), r.Skeleton...) {
						if text := written(t, object); shows(text, secret) {
							t.Fatalf("%s, %s: shown in %s:\n%s", a.field, a.authType, identity(object), text)
						}
					}
					if shows(written(t, r.Config), secret) {
						used++
						if r.Key.Namespace != "tenant" && !a.asClass {
							t.Fatalf("%s: in the config of %s", a.field, r.Key)
						}
					}
					o.Gateways[i].Config = nil
				}
				if text := everything(t, o); shows(text, secret) {
					t.Fatalf("%s, %s: a value is shown:\n%s", a.field, a.authType, text)
				}
			}
		}
	}
	if used < 20 {
		t.Errorf("%d configs hold a value: this test shows nothing", used)
	}
}

// everything returns the whole output as text, including errors and messages.
func everything(t *testing.T, o outcome) string {
	t.Helper()
	return written(t, o)
}

func written(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
