package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// K-02: credential.Redacted is refused in every secret field, with the name of the field. A withheld config contains
// neither secrets nor credential.Redacted.
func TestRedactedIsNotAValidSecret(t *testing.T) {
	cert, key := keyPair(t)
	whole := func() config.Config {
		c := good()
		c.Auth.Credentials["secret"], c.Auth.Credentials["extra"] = "hunter3", "hunter5"
		c.Listeners[1].Protocol, c.Listeners[1].Cert, c.Listeners[1].Key = config.TURNTLS, cert, credential.Secret(key)
		c.Auth.Former = &config.FormerSecret{Secret: "hunter7", Until: 1}
		c.Listeners[0].Key = "hunter6" // of a listener that needs none
		c.Listeners[1].Certificates = []config.Certificate{{Cert: cert, Key: credential.Secret(key)}}
		return c
	}
	c := whole()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	fields := secretsIn(reflect.ValueOf(&c).Elem(), "")
	if len(fields) < 8 {
		t.Fatalf("only %d secrets in a config: %v", len(fields), fields)
	}
	for at, field := range fields {
		marked := whole()
		of := secretsIn(reflect.ValueOf(&marked).Elem(), "")
		of[at].set(credential.Redacted)
		err := marked.Validate()
		if err == nil || !strings.Contains(err.Error(), field.path) || !strings.Contains(err.Error(), "left out") {
			t.Errorf("%s: error %v", field.path, err)
		}
	}
	withheld := whole().Withheld()
	for _, field := range secretsIn(reflect.ValueOf(&withheld).Elem(), "") {
		if field.value != "" {
			t.Errorf("%s is not withheld", field.path)
		}
	}
	if text := string(withheld.Canonical()); strings.Contains(text, "hunter") || strings.Contains(text, key) ||
		strings.Contains(text, "redacted") || withheld.Validate() == nil {
		t.Errorf("of the config is left: %s", text)
	}
}

// secretField is a value of the type of secrets.
type secretField struct {
	path  string
	value string
	set   func(credential.Secret)
}

// secretsIn finds all secrets in a value, by type and in a fixed order.
func secretsIn(v reflect.Value, path string) (found []secretField) {
	switch {
	case v.Type() == reflect.TypeFor[credential.Secret]():
		return []secretField{{
			path, v.Convert(reflect.TypeFor[string]()).String(),
			func(s credential.Secret) { v.Set(reflect.ValueOf(s)) },
		}}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			found = append(found, secretsIn(v.Field(i), strings.TrimPrefix(path+"."+name, "."))...)
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return secretsIn(v.Elem(), path)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			found = append(found, secretsIn(v.Index(i), path+"["+string(rune('0'+i))+"]")...)
		}
	case v.Kind() == reflect.Map && v.Type().Elem() == reflect.TypeFor[credential.Secret]():
		for _, key := range []string{"username", "password", "secret", "extra"} {
			at := reflect.ValueOf(key)
			if value := v.MapIndex(at); value.IsValid() {
				set := func(s credential.Secret) { v.SetMapIndex(at, reflect.ValueOf(s)) }
				found = append(
					found, secretField{path + "." + key, value.Convert(reflect.TypeFor[string]()).String(), set},
				)
			}
		}
	}
	return found
}
