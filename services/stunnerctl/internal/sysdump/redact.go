package sysdump

import (
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const redacted = "<redacted>"

var (
	// secretField matches the names of fields and environment variables whose values are secret.
	secretField = regexp.MustCompile(`(?i)(passw(or)?d|secret|token|credential|private.?key|api.?key|^(tls\.)?key$)`)
	// secretText matches secrets inside of texts, such as logs and arguments.
	secretText = regexp.MustCompile(`(?is)` +
		`-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
		`|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*` + // a JSON Web Token
		`|\bbearer\s+[\w.~+/-]{8,}` +
		`|(?:\b|_|--)(?:passw(?:or)?d|secret|token)["']?\s*[=:]\s*("[^"]*"|'[^']*'|[^\s"',;]+)` +
		`|\b(?:turns?|stuns?|https?)://[^\s/@:]+:[^\s/@]+@`) // credentials in a URL
)

// Object removes the secrets from an object: the values of fields and environment variables with the names of secrets,
// the last applied configuration of kubectl, and secrets inside of texts. References to Secrets stay, because they are
// needed to find errors.
func Object(o *unstructured.Unstructured) {
	annotations := o.GetAnnotations()
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
	o.SetAnnotations(annotations)
	o.SetManagedFields(nil)
	redactMap(o.Object)
}

// Text removes secrets from a text.
func Text(text string) string { return secretText.ReplaceAllString(text, redacted) }

func redactMap(fields map[string]any) {
	name, _ := fields["name"].(string)
	_, isVariable := fields["value"].(string)
	if isVariable && secretField.MatchString(name) {
		fields["value"] = redacted
	}
	for key, value := range fields {
		if text, ok := value.(string); ok && secretField.MatchString(key) && !isReference(key) {
			value = redacted
			if text == "" {
				value = text
			}
		}
		fields[key] = redactValue(value)
	}
}

// isReference reports whether a field with a name like that of a secret contains the name of an object.
func isReference(field string) bool {
	switch field {
	case "secretName", "credentialName", "secretKey", "tokenName":
		return true
	}
	return false
}

func redactValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		redactMap(value)
	case []any:
		for i := range value {
			value[i] = redactValue(value[i])
		}
	case string:
		return Text(value)
	}
	return value
}
