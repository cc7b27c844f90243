package v1

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// SecretValue is a secret: a string with the value, or an object {name, namespace, key} that references a Secret.
//
// A schema of a CRD cannot express that a value is a string or an object, so the API server accepts any value. Decoding
// accepts any value too, because one invalid object in a list must not hide the valid ones. Err returns the error.
type SecretValue struct {
	inline credential.Secret
	ref    *SecretKeyReference
	other  []byte
}

// SecretKeyReference references a key of a Secret.
type SecretKeyReference struct {
	// Name is the name of the Secret.
	Name string `json:"name"`
	// Namespace is the namespace of the Secret. It defaults to the namespace of the referencing object.
	Namespace string `json:"namespace,omitempty"`
	// Key is the key of the Secret that holds the value.
	Key string `json:"key,omitempty"`
}

// InlineSecret returns a SecretValue with the value itself.
func InlineSecret(s credential.Secret) *SecretValue { return &SecretValue{inline: s} }

// SecretFrom returns a SecretValue that references a Secret.
func SecretFrom(ref SecretKeyReference) *SecretValue { return &SecretValue{ref: &ref} }

// Inline returns the value, and whether it is in the object itself and not a reference.
func (v *SecretValue) Inline() (credential.Secret, bool) {
	if v == nil || v.ref != nil || v.other != nil {
		return "", false
	}
	return v.inline, true
}

// Ref returns the reference, and whether the value is one. If the reference has no key, it gets defaultKey.
func (v *SecretValue) Ref(defaultKey string) (SecretKeyReference, bool) {
	if v == nil || v.ref == nil {
		return SecretKeyReference{}, false
	}
	ref := *v.ref
	ref.Key = cmp.Or(ref.Key, defaultKey)
	return ref, true
}

// Err returns an error if the value is neither a string nor a reference.
func (v *SecretValue) Err() error {
	if v == nil || v.other == nil {
		return nil
	}
	_, err := parseReference(v.other)
	return err
}

// Equal reports whether both values are equal.
func (v *SecretValue) Equal(w *SecretValue) bool {
	if v == nil || w == nil {
		return v == w
	}
	a, aErr := json.Marshal(v)
	b, bErr := json.Marshal(w)
	return aErr == nil && bErr == nil && bytes.Equal(a, b)
}

// String returns the reference, or credential.Redacted for a value.
func (v SecretValue) String() string {
	switch {
	case v.ref == nil:
		return credential.Redacted
	case v.ref.Namespace == "":
		return fmt.Sprintf("key %q of Secret %s", v.ref.Key, v.ref.Name)
	}
	return fmt.Sprintf("key %q of Secret %s/%s", v.ref.Key, v.ref.Namespace, v.ref.Name)
}

// Format prints String for all verbs, so that none reveals the value.
func (v SecretValue) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(v.String())) }

// LogValue returns String.
func (v SecretValue) LogValue() slog.Value { return slog.StringValue(v.String()) }

// MarshalJSON encodes the string or the reference.
func (v *SecretValue) MarshalJSON() ([]byte, error) {
	switch {
	case v.other != nil:
		return v.other, nil
	case v.ref != nil:
		return json.Marshal(v.ref)
	}
	return json.Marshal(string(v.inline))
}

// UnmarshalJSON decodes a string or a reference. A value of any other type is stored, and Err reports it.
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

// parseReference parses a reference. Its errors do not repeat the data, because a misspelt reference may contain the
// secret.
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
