package v1

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

func decode(t *testing.T, text string) *SecretValue {
	t.Helper()
	var v SecretValue
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	return &v
}

func TestSecretValueRoundTrip(t *testing.T) {
	for _, text := range []string{
		`"larkspur"`,
		`""`,
		`"{\"name\":\"not a reference\"}"`,
		`{"name":"turn-users"}`,
		`{"name":"turn-users","namespace":"vault","key":"pass"}`,
		`42`, `true`, `["larkspur"]`, `{}`, `{"nmae":"turn-users"}`, `{"name":7}`, // wrong, but kept unchanged
	} {
		v := decode(t, text)
		back, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("encode %s: %v", text, err)
		}
		if string(back) != text {
			t.Errorf("%s came back as %s", text, back)
		}
		if copied := v.DeepCopy(); !copied.Equal(v) {
			t.Errorf("the copy of %s differs", text)
		}
	}
}

func TestSecretValueIsAStringOrAReference(t *testing.T) {
	inline := decode(t, `"larkspur"`)
	if s, ok := inline.Inline(); !ok || s != "larkspur" {
		t.Errorf("Inline() = %q, %t", string(s), ok)
	}
	if ref, ok := inline.Ref("password"); ok {
		t.Errorf("a string is the reference %v", ref)
	}

	ref := decode(t, `{"name":"turn-users"}`)
	if s, ok := ref.Inline(); ok {
		t.Errorf("a reference is the string %q", string(s))
	}
	if got, ok := ref.Ref("password"); !ok || got != (SecretKeyReference{Name: "turn-users", Key: "password"}) {
		t.Errorf("Ref(password) = %v, %t", got, ok)
	}
	if got, ok := decode(t, `{"name":"turn-users","key":"pass"}`).Ref("password"); !ok || got.Key != "pass" {
		t.Errorf("Ref(password) of a reference with a key = %v, %t", got, ok)
	}
	for _, v := range []*SecretValue{nil, inline, ref} {
		if err := v.Err(); err != nil {
			t.Errorf("%v: %v", v, err)
		}
	}
}

func TestUnsetSecretValueIsNeither(t *testing.T) {
	var unset *SecretValue
	_, inline := unset.Inline()
	_, ref := unset.Ref("password")
	if inline || ref {
		t.Errorf("unset is inline: %t, reference: %t", inline, ref)
	}
	if !unset.Equal(nil) || unset.Equal(InlineSecret("")) {
		t.Error("unset must equal unset, and not the empty string")
	}
}

func TestSecretValueOfAnotherTypeIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		`42`:                        "must be a string or an object {name, namespace, key}",
		`["larkspur"]`:              "must be a string or an object {name, namespace, key}",
		`{"nmae":"turn-users"}`:     "must be a string or an object {name, namespace, key}",
		`{"name":{"a":"larkspur"}}`: "must be a string or an object {name, namespace, key}",
		`{}`:                        "name is empty",
		`{"key":"larkspur"}`:        "name is empty",
	} {
		v := decode(t, text)
		err := v.Err()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
			continue
		}
		if strings.Contains(err.Error(), "larkspur") {
			t.Errorf("%s: the error repeats what may be a secret: %v", text, err)
		}
		if _, ok := v.Inline(); ok {
			t.Errorf("%s is inline", text)
		}
		if _, ok := v.Ref("password"); ok {
			t.Errorf("%s is a reference", text)
		}
	}
}

// One invalid object in a list must not hide the valid ones from the operator.
func TestListWithABadSecretValueDecodes(t *testing.T) {
	var list GatewayConfigList
	text := `{"items":[{"spec":{"password":42}},{"spec":{"password":"larkspur"}}]}`
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	if list.Items[0].Spec.Password.Err() == nil || list.Items[1].Spec.Password.Err() != nil {
		t.Errorf("errors are %v and %v", list.Items[0].Spec.Password.Err(), list.Items[1].Spec.Password.Err())
	}
}

// K-04: a secret value of a kind is not printed.
func TestSecretValueDoesNotPrint(t *testing.T) {
	spec := GatewayConfigSpec{Password: InlineSecret("larkspur"), SharedSecret: decode(t, `["larkspur"]`)}
	for _, v := range []any{spec, &spec, spec.Password, *spec.Password, spec.SharedSecret, *spec.SharedSecret} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			printed := fmt.Sprintf(verb, v)
			if strings.Contains(printed, "larkspur") || strings.Contains(printed, fmt.Sprintf("%x", "larkspur")) {
				t.Errorf("%s of %T prints the secret: %s", verb, v, printed)
			}
		}
	}
	if got, want := fmt.Sprint(
		SecretFrom(SecretKeyReference{Name: "turn-users", Key: "pass"}),
	), `key "pass" of Secret turn-users`; got != want {
		t.Errorf("a reference prints as %s, want %s", got, want)
	}
}

func TestSecretValueSurvivesUnstructured(t *testing.T) {
	spec := GatewayConfigSpec{
		UserName:     InlineSecret("ada"),
		Password:     SecretFrom(SecretKeyReference{Name: "turn-users", Namespace: "vault"}),
		SharedSecret: decode(t, `{"nmae":"x"}`),
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		t.Fatal(err)
	}
	var back GatewayConfigSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, back); diff != "" {
		t.Errorf("unstructured changed it (-want +got):\n%s", diff)
	}
}

func FuzzSecretValue(f *testing.F) {
	for _, text := range []string{
		`"a"`, `{"name":"a"}`, `{"name":"a","key":1}`, `null`, `[{}]`, `{"name":"a","name":2}`, ` "a" `,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var v, again SecretValue
		if json.Unmarshal([]byte(text), &v) != nil {
			return // not JSON, so no API server and no YAML reader returns it
		}
		back, err := json.Marshal(&v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(back, &again); err != nil {
			t.Fatal(err)
		}
		if !v.Equal(&again) {
			t.Errorf("%s became %s", text, back)
		}
		_, inline := v.Inline()
		_, ref := v.Ref(credential.Redacted)
		if malformed := v.Err() != nil; inline == ref && !malformed || (inline || ref) && malformed {
			t.Errorf("%s: inline %t, reference %t, error %v", text, inline, ref, v.Err())
		}
	})
}
