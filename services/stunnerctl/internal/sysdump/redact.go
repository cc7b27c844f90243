package sysdump

import (
	"crypto/rand"
	"net/netip"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const redacted = "<redacted>"

var (
	// secretField matches the names of fields, flags and environment variables whose values are secret.
	secretField = regexp.MustCompile(
		`(?i)(passw(or)?d|passphrase|secret|token|credential|private.?key|api.?key|access.?key|creds?$|^(tls\.)?key$)`)
	// secretVariable matches the names of environment variables whose values are secret, in addition to secretField. A
	// variable can have any name, so the expression also matches variables without a secret: removing a harmless value
	// is better than disclosing a secret.
	secretVariable = regexp.MustCompile(`(?i)(pass|pwd|secret|token|cred|key|private|cookie|salt|seed|dsn|jwt)`)
	// secretText matches secrets inside of texts, such as logs and arguments.
	secretText = regexp.MustCompile(`(?is)` +
		`-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
		`|\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*` + // a JSON Web Token
		`|\b(?:bearer|basic)\s+[\w.~+/=-]{8,}` +
		`|(?:\b|_|--?)(?:passw(?:or)?d|passphrase|secret|token|creds?|(?:api|access|private).?key)(?:\\?["'])?\s*[=:]\s*` +
		`(\\"[^"\\]*\\"|"[^"]*"|'[^']*'|[^\s"',;]+)`)
	// userInfo matches the credentials in a URL (RFC 3986 section 3.2.1).
	userInfo = regexp.MustCompile(`://[^\s/?#@"']+@`)
	// secretFlag matches a flag and its value, in one text.
	secretFlag = regexp.MustCompile(`(^|\s)(--?[A-Za-z][\w.-]*)(\s+|=)("[^"]*"|'[^']*'|[^\s-]\S*)`)
	// personal matches the fields of log lines and of query strings that contain a user name or the address of a
	// client.
	personal = regexp.MustCompile(`([\s?&{,]|^)("?(?:user|username|client|subject|source|caller|remote)"?)([=:]\s?)` +
		`("(?:[^"\\]|\\.)*"|[^\s"&,{}][^\s"&,}]*)`)
)

// privacy replaces user names and addresses of clients by hashes that are the same within one archive.
type privacy struct{ key []byte }

func newPrivacy() privacy {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return privacy{key}
}

// Log removes secrets from the text of a log, and replaces users and clients by hashes.
func (p privacy) Log(text string) string {
	return personal.ReplaceAllStringFunc(Text(text), func(field string) string {
		m := personal.FindStringSubmatch(field)
		value := strings.Trim(m[4], `"`)
		if strings.Trim(m[2], `"`) == "source" && !isAddress(value) { // the source of configs
			return field
		}
		return m[1] + m[2] + m[3] + strings.Replace(m[4], value, p.hash(value), 1)
	})
}

// Answer is Log for a decoded JSON value.
func (p privacy) Answer(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, one := range value {
			switch text, ok := one.(string); {
			case ok && (name == "user" || name == "client" || name == "caller"):
				value[name] = p.hash(text)
			default:
				value[name] = p.Answer(one)
			}
		}
	case []any:
		for i := range value {
			value[i] = p.Answer(value[i])
		}
	}
	return value
}

// hashed matches the hashes that dataplanes and auth services show.
var hashed = regexp.MustCompile(`^[0-9a-f]{12}$`)

// hash returns the hash of a user or a client. The port of a client is left out, so that its address has one hash.
func (p privacy) hash(value string) string {
	if value == "" || hashed.MatchString(value) {
		return value
	}
	if a, err := netip.ParseAddrPort(value); err == nil {
		value = a.Addr().Unmap().String()
	}
	return inspection.Hash(p.key, value)
}

func isAddress(text string) bool {
	if _, err := netip.ParseAddrPort(text); err == nil {
		return true
	}
	if _, err := netip.ParsePrefix(text); err == nil {
		return true
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}

// Object removes the secrets from an object: the values of fields, flags and environment variables with the names of
// secrets, the last applied configuration of kubectl, and secrets inside of texts. References to Secrets stay, because
// they are needed to find errors.
func Object(o *unstructured.Unstructured) {
	annotations := o.GetAnnotations()
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
	o.SetAnnotations(annotations)
	o.SetManagedFields(nil)
	redactMap(o.Object)
}

// Text removes secrets from a text.
func Text(text string) string {
	text = userInfo.ReplaceAllString(text, "://"+redacted+"@")
	text = secretFlag.ReplaceAllStringFunc(text, func(flag string) string {
		m := secretFlag.FindStringSubmatch(flag)
		if !isSecret(m[2]) {
			return flag
		}
		return m[1] + m[2] + m[3] + redacted
	})
	return secretText.ReplaceAllString(text, redacted)
}

// isSecret reports whether the value of a field, a flag or a variable with this name is secret. The name of an object
// or of a file is not secret.
func isSecret(name string) bool {
	return !isName(name) && secretField.MatchString(name)
}

// isName reports whether the value of a field, a flag or a variable with this name is the name of an object or of a
// file, a kind or a duration.
func isName(name string) bool {
	switch name {
	case "secretName", "credentialName", "secretKey", "tokenName":
		return true
	}
	lower := strings.ToLower(name)
	for _, suffix := range []string{"file", "path", "dir", "mode", "type", "expirationseconds", "lifetime"} {
		if strings.HasSuffix(lower, suffix) {
			return true
		}
	}
	return false
}

// isSecretVariable reports whether an environment variable with this name has a secret value.
func isSecretVariable(name string) bool {
	return isSecret(name) || !isName(name) && secretVariable.MatchString(name)
}

func redactMap(fields map[string]any) {
	name, _ := fields["name"].(string)
	if _, isVariable := fields["value"].(string); isVariable && isSecretVariable(name) {
		fields["value"] = redacted
	}
	for key, value := range fields {
		if text, ok := value.(string); ok && text != "" && isSecret(key) {
			value = redacted
		}
		fields[key] = redactValue(value)
	}
}

func redactValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		redactMap(value)
	case []any:
		for i := range value {
			if i > 0 && isSecretFlag(value[i-1]) {
				if text, ok := value[i].(string); ok && !strings.HasPrefix(text, "-") {
					value[i] = redacted
				}
			}
			value[i] = redactValue(value[i])
		}
	case string:
		return Text(value)
	}
	return value
}

// isSecretFlag reports whether an argument is a flag whose value, the next argument, is secret.
func isSecretFlag(argument any) bool {
	text, _ := argument.(string)
	return strings.HasPrefix(text, "-") && !strings.ContainsAny(text, "= \t\n") && isSecret(strings.TrimLeft(text, "-"))
}
