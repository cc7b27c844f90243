package config_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// leaf is a text or number field of the document.
type leaf struct {
	path []any // names of fields, and 0 for the only element of a list
	kind reflect.Kind
}

func (l leaf) String() string {
	text := ""
	for _, step := range l.path {
		if name, ok := step.(string); ok {
			text += "." + name
		} else {
			text += "[0]"
		}
	}
	return text[1:]
}

// leaves are all fields of a type, by the names of the document.
func leaves(t reflect.Type, path ...any) (all []leaf) {
	path = append([]any(nil), path...)
	switch t.Kind() {
	case reflect.Pointer:
		return leaves(t.Elem(), path...)
	case reflect.Slice:
		return leaves(t.Elem(), append(path, 0)...)
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			all = append(all, leaves(t.Field(i).Type, append(path, name)...)...)
		}
	case reflect.Map: // credentials
	default:
		all = append(all, leaf{path, t.Kind()})
	}
	return all
}

// put sets the value of a leaf.
func (l leaf) put(document map[string]any, value any) {
	var at any = document
	for i, step := range l.path {
		last := i == len(l.path)-1
		next := value
		if !last {
			next = map[string]any{}
			if _, list := l.path[i+1].(int); list {
				next = []any{nil}
			}
		}
		switch at := at.(type) {
		case map[string]any:
			name := step.(string)
			if old, there := at[name]; there && !last {
				next = old
			}
			at[name] = next
		case []any:
			if at[0] != nil && !last {
				next = at[0]
			}
			at[0] = next
		}
		if !last {
			at = next
		}
	}
}

// get returns the value of a leaf.
func (l leaf) get(v reflect.Value) reflect.Value {
	for _, step := range l.path {
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		name, isField := step.(string)
		if !isField {
			v = v.Index(0)
			continue
		}
		for i := range v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == name {
				v = v.Field(i)
				break
			}
		}
	}
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v
}

// fields are the fields of a config that may contain placeholders: texts and numbers.
func fields() (all []leaf) {
	for _, l := range leaves(reflect.TypeFor[config.Config]()) {
		if name := l.String(); name != "version" && !strings.HasPrefix(name, "admin.license_config") &&
			!strings.HasPrefix(name, "auth.former") && !strings.HasPrefix(name, "auth.revocations") && l.kind != reflect.Bool {
			all = append(all, l)
		}
	}
	return all
}

// Every field but the credentials accepts a placeholder in each spelling: texts are replaced by Expand, numbers by
// ParseWith. An unset variable is an error that names field and variable. No variable without the prefix is looked up.
func TestContractPlaceholdersInEveryField(t *testing.T) {
	texts, counts := 0, 0
	for _, l := range fields() {
		for _, placeholder := range []string{"$STUNNER_X", "${STUNNER_X}"} {
			document := map[string]any{"version": "v1"}
			l.put(document, placeholder)
			data, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			value := "77"
			if l.kind == reflect.String {
				texts++
				value = "10.9.8.7"
			} else {
				counts++
			}
			lookup := func(name string) string {
				if name != "STUNNER_X" {
					t.Errorf("%s: asked for %s", l, name)
				}
				return value
			}
			c, _, err := config.ParseWith(data, lookup)
			if err != nil {
				t.Errorf("%s: %v", l, err)
				continue
			}
			expanded, _ := c.Expand(lookup) // one field alone is not a valid config
			if l.String() == "listeners[0].proxy_protocol[0]" {
				value = "10.9.8.7/32" // its canonical spelling
			}
			if got := fmt.Sprint(l.get(reflect.ValueOf(expanded)).Interface()); l.String() != "listeners[0].key" &&
				l.String() != "listeners[0].certificates[0].key" && got != value {
				t.Errorf("%s: %s became %q, want %q", l, placeholder, got, value)
			}
			c, _, err = config.ParseWith(data, func(string) string { return "" })
			if err == nil {
				_, err = c.Expand(func(string) string { return "" })
			}
			if want := fmt.Sprintf("%s: \"STUNNER_X\" is not set", l); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s is not set: %v, want %q", placeholder, err, want)
			}
		}
	}
	if texts < 30 || counts < 18 {
		t.Errorf("%d texts and %d numbers looked at", texts, counts)
	}
}

// A private key is expanded like any other text.
func TestPlaceholderOfAKey(t *testing.T) {
	c := parse(
		t, `{"version":"v1","listeners":[{"name":"l","protocol":"TLS","cert":"$STUNNER_CERT","key":"$STUNNER_KEY"}]}`,
	)
	cert, key := keyPair(t)
	c.Auth = parse(t, deletion).Auth
	if err := c.Validate(); err != nil {
		t.Errorf("before it is expanded: %v", err)
	}
	expanded, err := c.Expand(
		func(name string) string { return map[string]string{"STUNNER_CERT": cert, "STUNNER_KEY": key}[name] },
	)
	if err != nil || string(expanded.Listeners[0].Key) != key {
		t.Errorf("expanded: %v", err)
	}
	if _, err := c.Expand(func(string) string { return "garbage" }); err == nil || !strings.Contains(
		err.Error(), "listeners[0].cert: and key are unusable",
	) {
		t.Errorf("garbage: %v", err)
	}
}

// The value of a placeholder is validated, and may use any spelling.
func TestExpandedValuesAreValidated(t *testing.T) {
	const document = `{"version":"v1","auth":{"type":"$STUNNER_AUTH_TYPE","realm":"$STUNNER_REALM","credentials":{"username":"u","password":"$STUNNER_PASSWORD$HOME"}},
		"listeners":[{"name":"l","address":"10.$STUNNER_ADDR","protocol":"$STUNNER_PROTOCOL","port":"$STUNNER_PORT"}],"clusters":[{"name":"c","endpoints":["$STUNNER_PEERS"]}]}`
	good := map[string]string{
		"STUNNER_AUTH_TYPE": "plaintext", "STUNNER_REALM": "calls.example.org", "STUNNER_ADDR": "1.2.3",
		"STUNNER_PROTOCOL": "tcp", "STUNNER_PORT": "5000", "STUNNER_PEERS": "10.0.0.0/8",
	}
	for name, tc := range map[string]struct {
		variable, value, want string
	}{
		"good":            {"", "", ""},
		"an unknown type": {"STUNNER_AUTH_TYPE", "kerberos", `auth.type: "kerberos" is unknown`},
		"a placeholder of its own": {
			"STUNNER_AUTH_TYPE", "$STUNNER_REALM", `auth.type: "$STUNNER_REALM" is unknown`,
		},
		"a realm with a quote": {"STUNNER_REALM", `a"b`, "auth.realm:"},
		"an unknown protocol":  {"STUNNER_PROTOCOL", "SCTP", `listeners[0].protocol: "SCTP" is unknown`},
		"a port out of range":  {"STUNNER_PORT", "70000", "listeners[0].port: 70000 is out of range"},
		"a port that is no number": {
			"STUNNER_PORT", "secret", `listeners[0].port: "STUNNER_PORT" has a value that is no whole number`,
		},
		"a port that is too long": {"STUNNER_PORT", "99999999999999999999", "no whole number"},
		"half an address": {
			"STUNNER_ADDR", "1.2.3.4", `listeners[0].address: "10.1.2.3.4" is no IP address`,
		},
		"an endpoint that is no such": {"STUNNER_PEERS", "media.example", "clusters[0].endpoints[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			lookup := func(asked string) string {
				if asked == tc.variable {
					return tc.value
				}
				return good[asked]
			}
			c, _, err := config.ParseWith([]byte(document), lookup)
			if err == nil {
				if err := c.Validate(); err != nil && tc.variable != "STUNNER_PORT" {
					t.Errorf("before it is expanded: %v", err)
				}
				c, err = c.Expand(lookup)
			}
			if tc.want == "" &&
				(err != nil || c.Auth.Type != config.AuthStatic || c.Listeners[0].Protocol != config.TURNTCP ||
					c.Listeners[0].Port != 5000 ||
					c.Auth.Credentials[config.KeyPassword] != "$STUNNER_PASSWORD$HOME") {
				t.Errorf("%v: %s", err, c.Canonical())
			}
			if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the value of a variable: %v", err)
			}
		})
	}
}

// A placeholder in place of a number is valid in ParseWith only.
func TestPlaceholderOfANumberNeedsALookup(t *testing.T) {
	_, _, err := config.Parse([]byte(`{"version":"v1","listeners":[{"name":"l","port":"$STUNNER_PORT"}]}`))
	if err == nil ||
		!strings.Contains(err.Error(), "listeners[0].port: cannot be read from a JSON string: write a whole number") {
		t.Error(err)
	}
}
