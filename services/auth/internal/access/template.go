package access

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// Template is the form of user ids: literal text with fields in braces. The zero Template means the default: the
// subject of a token, or for other callers the user name that the request chooses.
type Template struct {
	text  string
	parts []part
}

// part is literal text, or a field if field is set.
type part struct {
	text  string
	field bool
}

// The fields of a Template.
const (
	fieldSubject  = "sub"      // the subject of a token
	fieldName     = "name"     // the name of an API key
	fieldUsername = "username" // the user name that the request chooses
	claimPrefix   = "claim."   // a claim of a token, a string
)

// The templates of callers for which the policy has none.
var (
	subjectTemplate = Template{text: "{sub}", parts: []part{{fieldSubject, true}}}
	chosenTemplate  = Template{text: "{username}", parts: []part{{fieldUsername, true}}}
)

// maxTemplate is the maximum length of a Template in bytes.
const maxTemplate = 256

// parseTemplate parses a template with some of the given fields; "claim." allows every claim.
func parseTemplate(text string, fields ...string) (Template, error) {
	t := Template{text: text}
	if text == "" || len(text) > maxTemplate || strings.ContainsFunc(text, unicode.IsControl) {
		return t, fmt.Errorf("must have 1 to %d bytes without control characters", maxTemplate)
	}
	for rest := text; rest != ""; {
		literal, field, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return t, fmt.Errorf("%q has a brace without its pair", text)
		}
		if literal != "" {
			t.parts = append(t.parts, part{text: literal})
		}
		if !found {
			break
		}
		if field, rest, found = strings.Cut(field, "}"); !found {
			return t, fmt.Errorf("%q has a brace without its pair", text)
		}
		if !allowedField(field, fields) {
			return t, fmt.Errorf("{%s} is unknown here: use {%s}", field, strings.Join(fields, "}, {"))
		}
		t.parts = append(t.parts, part{field, true})
	}
	return t, nil
}

func allowedField(field string, fields []string) bool {
	for _, allowed := range fields {
		if field == allowed && field != claimPrefix ||
			allowed == claimPrefix && strings.HasPrefix(field, claimPrefix) && len(field) > len(claimPrefix) {
			return true
		}
	}
	return false
}

// chosen reports whether the request chooses the user name.
func (t Template) chosen() bool {
	for _, p := range t.parts {
		if p.field && p.text == fieldUsername {
			return true
		}
	}
	return false
}

// expand replaces all fields except fieldUsername, which stays.
func (t Template) expand(values map[string]string, claims map[string]json.RawMessage) (Template, error) {
	out := Template{text: t.text, parts: make([]part, len(t.parts))}
	for i, p := range t.parts {
		if p.field && p.text != fieldUsername {
			value, known := values[p.text]
			if name, ok := strings.CutPrefix(p.text, claimPrefix); ok {
				known = json.Unmarshal(claims[name], &value) == nil && value != ""
			}
			if !known {
				return out, refuse(TokenClaimRequired, "claim %s: the policy needs it for the user id, as a string",
					strings.TrimPrefix(p.text, claimPrefix))
			}
			p = part{text: value}
		}
		out.parts[i] = p
	}
	return out, nil
}

// id returns the user id for a user name. The user name is not escaped, because a request must not contain a colon in
// it, and TURN REST clients expect it as they have sent it.
func (t Template) id(username string) (string, error) {
	var text, id strings.Builder
	for _, p := range t.parts {
		if p.field {
			text.WriteString(username)
			id.WriteString(username)
			continue
		}
		text.WriteString(p.text)
		id.WriteString(escaper.Replace(p.text))
	}
	return boundedID(text.String(), id.String())
}

// canProduce reports whether the template can result in a user id. It cannot result in a hashed user id, because the
// user name cannot be derived from the hash.
func (t Template) canProduce(userID string) bool {
	if t.parts == nil {
		t = chosenTemplate
	}
	rest, fields, begin := len(userID), 0, 0
	for _, p := range t.parts {
		switch {
		case p.field:
			fields++
		default:
			rest -= len(escaper.Replace(p.text))
			if fields == 0 {
				begin += len(escaper.Replace(p.text))
			}
		}
	}
	if fields == 0 || rest < fields || rest%fields != 0 {
		return false
	}
	username := userID[begin : begin+rest/fields]
	id, err := t.id(username)
	return err == nil && id == userID && !strings.Contains(username, ":")
}
