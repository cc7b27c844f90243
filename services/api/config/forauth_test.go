package config

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// neededForAuth classifies every field of a config: whether an auth service needs it. TestForAuth fails for a missing
// field.
var neededForAuth = map[string]bool{
	"version":                    true,
	"admin.name":                 true,
	"admin.loglevel":             false,
	"admin.metrics_endpoint":     false,
	"admin.healthcheck_endpoint": false,
	"admin.user_quota":           false,
	"admin.source_quota":         false,
	"admin.session_byte_rate":    false,
	"admin.user_byte_rate":       false,
	"admin.offload_engine":       false,
	"admin.offload_interfaces":   false,
	"admin.client_addresses":     false,
	"admin.license_config.key":   false,
	"admin.license_config.hmac":  false,
	"auth.type":                  true,
	"auth.realm":                 true,
	"auth.credentials":           true,
	"auth.lifetime":              true,
	"auth.session_grace":         false,
	"auth.credential_overlap":    false,
	"auth.former.secret":         false,
	"auth.former.until":          false,

	"auth.revocations.user":          true,
	"auth.revocations.credential":    true,
	"auth.revocations.issued_before": true,
	"auth.revocations.until":         true,

	"listeners.name":                 true,
	"listeners.protocol":             true,
	"listeners.public_address":       true,
	"listeners.public_addresses":     true,
	"listeners.public_host":          true,
	"listeners.public_port":          true,
	"listeners.service_addresses":    false,
	"listeners.tls_at_load_balancer": true,
	"listeners.proxy_protocol":       false,
	"listeners.address":              false,
	"listeners.port":                 true,
	"listeners.cert":                 false,
	"listeners.key":                  false,
	"listeners.certificates.cert":    false,
	"listeners.certificates.key":     false,
	"listeners.routes":               false,

	"clusters.name":      false,
	"clusters.type":      false,
	"clusters.protocol":  false,
	"clusters.endpoints": false,
	"clusters.except":    false,
}

// markedConfig sets every field of a config to a unique value, and returns these values by the path of the field.
func markedConfig(t *testing.T) (Config, map[string]string) {
	t.Helper()
	c, marks := Config{}, map[string]string{}
	number := int64(70_001)
	var fill func(v reflect.Value, path string)
	fill = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.String:
			marks[path] = "mark-" + strings.ReplaceAll(path, ".", "-")
			v.SetString(marks[path])
		case reflect.Int, reflect.Int32, reflect.Int64:
			number++
			marks[path] = strconv.FormatInt(number, 10)
			v.SetInt(number)
		case reflect.Bool:
			marks[path] = `"` + path[strings.LastIndexByte(path, '.')+1:] + `":true`
			v.SetBool(true)
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), path)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), path)
		case reflect.Map:
			secrets := map[string]credential.Secret{}
			for _, key := range []string{KeyUsername, KeyPassword, KeySecret, "another"} {
				secrets[key] = credential.Secret("mark-credential-" + key)
			}
			marks[path] = "mark-credential-"
			v.Set(reflect.ValueOf(secrets))
		case reflect.Struct:
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				fill(v.Field(i), strings.TrimPrefix(path+"."+name, "."))
			}
		default:
			t.Fatalf("%s: a %s is not known here", path, v.Kind())
		}
	}
	fill(reflect.ValueOf(&c).Elem(), "")
	return c, marks
}

// ForAuth returns the needed fields only. Every field is classified.
func TestForAuth(t *testing.T) {
	for authType, secrets := range map[AuthType][]string{
		AuthStatic: {KeyPassword, KeyUsername}, AuthEphemeral: {KeySecret}, AuthNone: nil, "longterm": {KeySecret},
		"": {KeyPassword, KeyUsername},
	} {
		c, marks := markedConfig(t)
		if got, want := slices.Sorted(maps.Keys(marks)), slices.Sorted(
			maps.Keys(neededForAuth),
		); !slices.Equal(got, want) {
			t.Fatalf("fields are\n%q, classified are\n%q", got, want)
		}
		c.Auth.Type, c.Listeners[0].Protocol = authType, TURNTLS
		delete(marks, "auth.type")
		delete(marks, "listeners.protocol")
		delete(marks, "auth.credentials")
		view := c.ForAuth()
		text := string(view.Canonical())
		for path, mark := range marks {
			if strings.Contains(text, mark) != neededForAuth[path] {
				t.Errorf("%s: is %t that an auth service needs it: %s", path, neededForAuth[path], text)
			}
		}
		if got := slices.Sorted(maps.Keys(view.Auth.Credentials)); !slices.Equal(got, secrets) {
			t.Errorf("%q: credentials %q, want %q", authType, got, secrets)
		}
		if view.Listeners[0].Protocol != TURNTLS || canonical(authTypes, authType, AuthStatic) != view.Auth.Type {
			t.Errorf("%q: %s", authType, text)
		}
	}
}

// The result of ForAuth is valid if the config is, also for previous releases. No dataplane runs it if it has a TLS
// listener.
func TestForAuthIsValid(t *testing.T) {
	for _, authType := range []AuthType{AuthStatic, AuthEphemeral, AuthNone} {
		c := Config{Admin: Admin{
			Name: "media/edge",
		}, Auth: Auth{Type: authType, Credentials: map[string]credential.Secret{
			KeyUsername: "user", KeyPassword: "password", KeySecret: "secret",
		}}}
		for i, p := range protocols {
			c.Listeners = append(c.Listeners, Listener{
				Name: "media/edge/" + p.short, Protocol: p.protocol, Address: NodeAddressPlaceholder, Port: 3478 + i,
				PublicAddress: "192.0.2.1", PublicAddresses: []string{"192.0.2.1", "2001:db8::1"},
			})
		}
		named := &c.Listeners[len(c.Listeners)-1]
		if named.PublicHost = "turn.example.com"; !named.Protocol.Secure() {
			t.Fatalf("%s has no certificate", named.Protocol)
		}
		c.Default()
		data := c.ForAuth().Canonical()
		got, unknown, err := Parse(data)
		if err != nil || len(unknown) > 0 || got.Validate() != nil || got.IsZero() {
			t.Fatalf("%s: %v, %q, %v: %s", authType, err, unknown, got.Validate(), data)
		}
		for i, l := range got.Listeners {
			if got, want := l.URIs(), c.Listeners[i].URIs(); len(got) == 0 || !slices.Equal(got, want) {
				t.Errorf("%s: found at %v, want %v", l.Name, got, want)
			}
		}
		if _, err := got.Expand(func(string) string { return "" }); err == nil || !strings.Contains(
			err.Error(), `listeners[2].key: "STUNNER_KEY_WITHHELD" is not set`,
		) {
			t.Errorf("%s: a dataplane would say %v", authType, err)
		}
	}
}
