package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func TestParseReadsEverySpelling(t *testing.T) {
	want := parse(t, `{"version":"v1",
		"admin":{"name":"media/edge","loglevel":"turn:DEBUG","offload_engine":"XDP","offload_interfaces":["eth0","eth1"]},
		"auth":{"type":"ephemeral","realm":"media.example","credentials":{"secret":"0123"}},
		"listeners":[{"name":"media/edge/a","protocol":"TURN-DTLS","address":"127.0.0.1","port":3478,"routes":["media/sfu","media/sip"]}],
		"clusters":[{"name":"media/sfu","type":"STRICT_DNS","protocol":"UDP","endpoints":["sfu.media.svc"]}]}`)
	for name, text := range map[string]string{
		"YAML": `
# comments are fine
version: v1
admin: {name: media/edge, loglevel: "turn:DEBUG", offload_engine: XDP, offload_interfaces: [eth0, eth1]}
auth:
  type: ephemeral
  realm: media.example
  credentials: {secret: "0123"}
listeners:
- name: media/edge/a
  protocol: turn-dtls
  address: localhost
  routes: [media/sfu, media/sip]
clusters:
- {name: media/sfu, type: strict_dns, endpoints: [sfu.media.svc]}
`,
		"aliases": `{"version":"v1",
			"admin":{"name":"media/edge","logLevel":"turn:DEBUG","offload_engine":"xdp","offload_interfaces":["eth1","eth0","eth1"]},
			"auth":{"type":"timewindowed","realm":"media.example","credentials":{"secret":"0123"}},
			"listeners":[{"name":"media/edge/a","protocol":"dtls","address":"LocalHost","routes":["media/sip","media/sfu"]}],
			"clusters":[{"name":"media/sfu","type":"Strict_Dns","protocol":"udp","endpoints":["sfu.media.svc"]}]}`,
		"v1alpha1": `{"version":"v1alpha1",
			"admin":{"name":"media/edge","loglevel":"turn:DEBUG","offload_engine":"XDP","offload_interfaces":["eth0","eth1"],"user_quota":-3},
			"auth":{"type":"longterm","realm":"media.example","credentials":{"secret":"0123"}},
			"listeners":[{"name":"media/edge/a","protocol":"DTLS","address":"127.0.0.1","min_relay_port":10000,"max_relay_port":"20000",
				"routes":["media/sfu","media/sip"]}],
			"clusters":[{"name":"media/sfu","type":"STRICT_DNS","endpoints":["sfu.media.svc"]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, parse(t, text)); diff != "" {
				t.Errorf("it reads differently (-want +got):\n%s", diff)
			}
		})
	}
}

// unknown fields are returned with their paths.
func TestParseReportsUnknownFields(t *testing.T) {
	_, unknown, err := config.Parse([]byte(`{"version":"v1","colour":1,"admin":{"nested":{"a":1}},"listeners":[{"name":"l"},{"name":"m","Port":1}],
		"auth":{"credentials":{"free":"form"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(unknown)
	if want := []string{"admin.nested", "colour", "listeners[1].Port"}; !slices.Equal(unknown, want) {
		t.Errorf("unknown fields %q, want %q", unknown, want)
	}
}

func TestUnknownFieldsAreBounded(t *testing.T) {
	text := `{"version":"v1","auth":{"type":"none"},"` + strings.Repeat("x", 10_000) + `":1`
	for i := range 1000 {
		text += fmt.Sprintf(`,"f%d":{}`, i)
	}
	_, unknown, err := config.Parse([]byte(text + "}"))
	if err != nil || len(unknown) != config.MaxUnknown || len(strings.Join(unknown, "")) > 1000 {
		t.Errorf("%d unknown fields, the first %.300s; %v", len(unknown), unknown, err)
	}
}

func TestParseRefuses(t *testing.T) {
	aliases := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		aliases += fmt.Sprintf(
			"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", 'b'+i, 'b'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i, 'a'+i,
			'a'+i, 'a'+i, 'a'+i,
		)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":    {"", "empty"},
		"blanks":     {" \n\t ", "empty"},
		"a comment":  {"# nothing here\n", "empty"},
		"null":       {"null", "version: is missing: use v1 or v1alpha1"},
		"no version": {"{}", "version: is missing: use v1 or v1alpha1"},
		"another version": {
			`{"version":"v2","listeners":"none"}`, `version: "v2" is not supported: use v1 or v1alpha1`,
		},
		"a number as version": {
			`{"version":1}`, "version: cannot be read from a JSON number: write a text, in quotes",
		},
		"a list":      {"[]", "document: cannot be read from a JSON array: write an object"},
		"a text":      {"hello", "document: cannot be read from a JSON string: write an object"},
		"broken JSON": {`{"version":"v1",`, "yaml: line 1"},
		"broken YAML": {"version: v1\nadmin: {name: [\n", "yaml: line"},
		"binary":      {"\x00\x01\x02", "yaml: control characters"},
		"a text as port": {
			`{"version":"v1","listeners":[{"port":"3478"}]}`,
			"listeners.port: cannot be read from a JSON string: write a whole number",
		},
		"a fraction as port": {
			`{"version":"v1","listeners":[{"port":1.5}]}`,
			"listeners.port: cannot be read from a JSON number: write a whole number",
		},
		"a number as password": {
			`{"version":"v1","auth":{"credentials":{"password":12345}}}`,
			"auth.credentials: cannot be read from a JSON number: write a text, in quotes",
		},
		"a JSON field twice": {
			`{"version":"v1","auth":{"realm":"a","realm":"b"}}`, "auth.realm: is set twice: keep one",
		},
		"a YAML field twice":      {"version: v1\nversion: v1\n", `line 2: key "version" already set`},
		"a second document":       {"version: v1\n---\nversion: v1\n", "more than one YAML document"},
		"a document after an end": {"version: v1\n...\nversion: v1\n", "more than one YAML document"},
		"aliases that explode":    {aliases, "excessive aliasing"},
		"aliases of long texts": {`version: v1
x: [&a "` + strings.Repeat("x", 100_000) + `"` + strings.Repeat(", *a", 500) + "]\n", "with its aliases filled in"},
		"a version without end": {`{"version":"` + strings.Repeat("x", 1000) + `"}`, "…"},
		"a long field twice": {`{"version":"v1","auth":{"credentials":{` + strings.Repeat(
			`"`+strings.Repeat("x", 1000)+`":"",`, 2,
		) + `"":""}}}`, "…: is set twice"},
		"a key that is a secret": {"version: v1\nauth: {credentials: {? {password: hunter2} : hunter2}}\n", "yaml: "},
		"a key that is nothing":  {"version: v1\nauth: {credentials: {null: hunter2}}\n", "yaml: "},
		"a tag that lies":        {"version: v1\nauth: {credentials: {password: !!int hunter2}}\n", "yaml: "},
		"tabs":                   {"\tversion: v1\n", "yaml: found character that cannot start any token"},
		"one field very often":   {strings.Repeat("a: b\n", 10_000), "…"},
		"too many listeners": {
			`{"version":"v1","listeners":[` + strings.Repeat("{},", 1_000) + `{}]}`,
			"listeners: 1001 entries are too many: the limit is 1000",
		},
		"a document too large": {
			`{"version":"v1","x":"` + strings.Repeat("x", config.MaxDocument) + `"}`, "too large",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := config.Parse([]byte(c.text))
			if err == nil {
				t.Fatalf("it is read as %s", got.Canonical())
			}
			if !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "parse config: ") {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if len(err.Error()) > 400 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			for _, secret := range []string{"hunter2", "12345"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows a secret: %v", err)
				}
			}
		})
	}
}

func TestParseAcceptsOneYAMLDocumentWithAnyMarkers(t *testing.T) {
	parse(t, "# head\n---\n# comment\nversion: v1 # ---\nadmin:\n  name: |-\n    x\n    ---\n...\n# tail\n")
}

func TestParseReplacesAliases(t *testing.T) {
	c := parse(
		t,
		"version: v1\nauth: {type: none}\nclusters: [{name: a, endpoints: &both [10.0.0.1, 10.0.0.2]}, {name: b, endpoints: *both}]\n",
	)
	if got := c.Clusters[1].Endpoints; !slices.Equal(got, []string{"10.0.0.1", "10.0.0.2"}) {
		t.Errorf("endpoints %q", got)
	}
}

func TestMissingPortHasADefaultAndZeroHasNone(t *testing.T) {
	c := parse(
		t,
		`{"version":"v1","auth":{"type":"none"},"listeners":[{"name":"a"},{"name":"b","port":null,"protocol":"tcp"},{"name":"c","port":0}]}`,
	)
	if a, b, zero := c.Listeners[0].Port, c.Listeners[1].Port, c.Listeners[2].Port; a != 3478 || b != 3478 ||
		zero != 0 {
		t.Errorf("ports %d, %d and %d", a, b, zero)
	}
	if err := c.Validate(); err == nil || err.Error() != "listeners[2].port: 0 is out of range: use 1 to 65535" {
		t.Errorf("error %v", err)
	}
}

// F-04: a valid config stays the same and valid when it is encoded and parsed repeatedly, and no document grows much.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		rendered, deletion, former, "", "{}", "null", `{"version":"v1"}`, "version: v1\nauth: {type: none}\n",
		`{"version":"v1alpha1","auth":{"type":"plaintext"}}`,
		`{"version":"v1","auth":{"type":"none"},"listeners":[{"name":"l","port":0},{"name":"l","port":70000,"protocol":"x"}]}`,
		`{"version":"v1","admin":{"healthcheck_endpoint":"","user_quota":-1,"license_config":{"key":"k"}},"auth":{"type":"NONE","realm":"\u0000"}}`,
		`{"version":"v1","auth":{"type":"none"},"clusters":[{"name":"c","endpoints":["10.0.0.0/8:<1-2>","::1"]},{"name":"b","type":"strict_dns","endpoints":["x"]}]}`,
		"a: &a [*a]", "version: v1\n---\nx", "version: v1\nauth: &a {type: none}\nx: [*a, *a, {<<: *a}]\n", "\xff\xfe",
		"version: v1\nx: \"\\0\\L\"\n",
		`{"version":"v1alpha1","admin":{"logLevel":"x"},"auth":{"type":"longterm","credentials":{"secret":"` + "\xff\u2028" + `"}},"listeners":[{"protocol":"dtls","min_relay_port":1}]}`,
		`{"version":"v1","newer":{"a":[1]},"auth":{"type":"none","newer":null},"listeners":[{"name":"l","newer":"x"}]}`,
		`{"version":"v1","auth":{"credentials":{"` + "\xff" + `":"x"}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const readable = 64 << 10 // maximum length of the text of errors in bytes
		_, _, _ = config.ParseWith(data, func(name string) string {
			if !strings.HasPrefix(name, "STUNNER_") {
				t.Fatalf("a file reads the variable %s", name)
			}
			return "1"
		})
		c, unknown, err := config.Parse(data)
		if err != nil {
			if len(err.Error()) > readable {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if size := len(strings.Join(unknown, "")); len(unknown) > config.MaxUnknown || size > readable {
			t.Fatalf("%d unknown fields of %d bytes", len(unknown), size)
		}
		problem := c.Validate()
		if problem != nil && len(problem.Error()) > readable {
			t.Fatalf("a problem of %d bytes", len(problem.Error()))
		}
		first := c.Canonical()
		if len(first) > bound(data) {
			t.Fatalf("%d bytes become %d", len(data), len(first))
		}
		again, unknown, err := config.Parse(first)
		if err != nil || len(unknown) > 0 {
			t.Fatalf("the canonical form does not parse: %v, unknown %q\n%s", err, unknown, first)
		}
		if second := again.Canonical(); string(first) != string(second) {
			t.Fatalf("the canonical form changes:\n%s\n%s", first, second)
		}
		if (problem == nil) != (again.Validate() == nil) {
			t.Fatalf("validity changes: %v, then %v", problem, again.Validate())
		}
		if differences := config.Diff(c, again); problem == nil && len(differences) > 0 {
			t.Fatalf("the canonical form differs: %v", differences)
		}
		if _, _, err := config.Parse(c.Redacted().Canonical()); err != nil {
			t.Fatalf("the redacted form does not parse: %v", err)
		}
		if !json.Valid(first) {
			t.Fatal("the canonical form is no JSON")
		}
	})
}

// bound is the maximum size of the canonical form of a document: a byte may need an escape of six, aliases are expanded
// up to MaxDocument, and defaults are added for each listener and cluster.
func bound(data []byte) int {
	const defaults = 1 << 20
	size := len(data)
	if bytes.IndexByte(data, '*') >= 0 {
		size = config.MaxDocument
	}
	return len(`\u0000`)*size + defaults
}

func TestErrorsCanBeUnwrapped(t *testing.T) {
	_, _, err := config.Parse([]byte(`{"version":"v7"}`))
	var field *config.FieldError
	if !errors.As(err, &field) || field.Field != "version" || field.Value != "v7" {
		t.Errorf("error %#v", err)
	}
}
