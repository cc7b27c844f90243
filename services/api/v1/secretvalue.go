package v1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// SecretValue is a secret that is either written in place, as a string, or kept in a Secret, as an object {name, namespace, key}.
//
// The schema cannot tell a string from an object, so the API server lets everything through. Decoding lets it through as
// well, because one bad object in a list must not hide the good ones: a value that is neither is kept as it is, and Err says so.
type SecretValue struct {
	inline credential.Secret
	ref    *SecretKeyReference
	other  []byte
}

// SecretKeyReference names one key of a Secret.
type SecretKeyReference struct {
	// Name is the name of the Secret.
	Name string `json:"name"`
	// Namespace is the namespace of the Secret, by default that of the object that names it.
	Namespace string `json:"namespace,omitempty"`
	// Key is the key whose value is the secret.
	Key string `json:"key,omitempty"`
}

// InlineSecret is a secret that is written in place.
func InlineSecret(s credential.Secret) *SecretValue { return &SecretValue{inline: s} }

// SecretFrom is a secret that is kept in a Secret.
func SecretFrom(ref SecretKeyReference) *SecretValue { return &SecretValue{ref: &ref} }

// Inline returns the secret when it is written in place.
func (v *SecretValue) Inline() (credential.Secret, bool) {
	if v == nil || v.ref != nil || v.other != nil {
		return "", false
	}
	return v.inline, true
}

// Ref returns the reference when the secret is kept in a Secret. A reference without key gets the default one.
func (v *SecretValue) Ref(defaultKey string) (SecretKeyReference, bool) {
	if v == nil || v.ref == nil {
		return SecretKeyReference{}, false
	}
	ref := *v.ref
	if ref.Key == "" {
		ref.Key = defaultKey
	}
	return ref, true
}

// Err says why the value is neither a string nor a reference.
func (v *SecretValue) Err() error {
	if v == nil || v.other == nil {
		return nil
	}
	_, err := parseReference(v.other)
	return err
}

// Equal reports whether both values say the same.
func (v *SecretValue) Equal(w *SecretValue) bool {
	if v == nil || w == nil {
		return v == w
	}
	a, aErr := json.Marshal(v)
	b, bErr := json.Marshal(w)
	return aErr == nil && bErr == nil && bytes.Equal(a, b)
}

// String shows where the secret is, never what it is.
func (v SecretValue) String() string {
	switch {
	case v.ref == nil:
		return credential.Redacted
	case v.ref.Namespace == "":
		return fmt.Sprintf("key %q of Secret %s", v.ref.Key, v.ref.Name)
	}
	return fmt.Sprintf("key %q of Secret %s/%s", v.ref.Key, v.ref.Namespace, v.ref.Name)
}

// Format prints String whatever the verb, so that no verb leaks.
func (v SecretValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(v.String())) }

// LogValue is String.
func (v SecretValue) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalJSON writes the string or the reference.
func (v *SecretValue) MarshalJSON() ([]byte, error) {
	switch {
	case v.other != nil:
		return v.other, nil
	case v.ref != nil:
		return json.Marshal(v.ref)
	}
	return json.Marshal(string(v.inline))
}

// UnmarshalJSON reads a string or a reference, and keeps anything else for Err.
func (v *SecretValue) UnmarshalJSON(data []byte) error {
	var inline string
	if json.Unmarshal(data, &inline) == nil {
		*v = SecretValue{inline: credential.Secret(inline)}
		return nil
	}
	if ref, err := parseReference(data); err == nil {
		*v = SecretValue{ref: &ref}
		return nil
	}
	*v = SecretValue{other: bytes.Clone(data)}
	return nil
}

// parseReference never repeats the data in its errors: a misspelt reference may hold the secret itself.
func parseReference(data []byte) (SecretKeyReference, error) {
	var ref SecretKeyReference
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if d.Decode(&ref) != nil {
		return ref, errors.New("must be a string or an object {name, namespace, key} of strings")
	}
	if ref.Name == "" {
		return ref, errors.New("must name a Secret: name is empty")
	}
	return ref, nil
}
