package condition

import (
	"cmp"
	"fmt"
	"strings"

	api "github.com/stunner-gateway/stunner/services/api/finding"
)

// Finding is the result of a rule of the translation: the reason of a condition, and the causes that its message lists.
// The zero Finding means that there is no problem.
type Finding struct {
	Reason string
	Causes []Cause
	// notes are texts at the end of the message that are not a part of the problem.
	notes []string
}

// Cause is a problem, with its remedy.
type Cause struct {
	// Object is the object in which the problem is; empty for the object that has the condition.
	Object string
	// Field is the path of the field of Object; empty if the problem is not in a single field.
	Field string
	// DependsOn is another object. It does not exist, or does not permit the reference in Field.
	DependsOn string
	Problem   string
	// Remedy is empty if hints has one for the reason.
	Remedy string
	// message is the part of the message of the condition.
	message string
}

// OK reports whether the rule is satisfied.
func (f Finding) OK() bool { return f.Reason == "" }

// As returns a copy of the finding with another reason. The conditions of two objects may need different reasons for
// the same problem.
func (f Finding) As(reason string) Finding {
	if !f.OK() {
		f.Reason = reason
	}
	return f
}

// Message returns the message of the condition.
func (f Finding) Message() string {
	var parts []string
	for _, c := range f.Causes {
		parts = append(parts, c.message)
	}
	return strings.Join(append(parts, f.notes...), "; ")
}

// Findings returns the causes as findings. The object or field of a finding is empty if its cause has none. The
// severity is always empty.
func (f Finding) Findings() (all []api.Finding) {
	for _, c := range f.Causes {
		all = append(all, api.Finding{
			Object: c.Object, Field: c.Field, DependsOn: c.DependsOn, Problem: c.Problem,
			Remedy: cmp.Or(c.Remedy, hints[f.Reason]),
		})
	}
	return all
}

// finding returns a finding with one cause.
func finding(reason, format string, args ...any) Finding {
	text := fmt.Sprintf(format, args...)
	return Finding{Reason: reason, Causes: []Cause{{Problem: text, message: text}}}
}

// Restore returns the finding with a message that ends with the remedy. The finding is OK if the reason is empty.
func Restore(reason, message, remedy string) Finding {
	if reason == "" {
		return Finding{}
	}
	problem := strings.TrimRight(strings.TrimSuffix(message, remedy), ":; ")
	return Finding{Reason: reason, Causes: []Cause{{Problem: problem, Remedy: remedy, message: message}}}
}

// Join joins findings: the result has the reason of the first finding that is not OK, and the causes of all findings.
func Join(findings []Finding) Finding {
	var joined Finding
	for _, f := range findings {
		if f.OK() {
			continue
		}
		joined.Reason = cmp.Or(joined.Reason, f.Reason)
		joined.Causes = append(joined.Causes, f.Causes...)
		joined.notes = append(joined.notes, f.notes...)
	}
	return joined
}

// The following methods complete the only cause of a finding of function finding, and return the finding.

// at sets the field, and writes it before the message.
func (f Finding) at(field string) Finding {
	f.Causes[0].message = field + ": " + f.Causes[0].message
	return f.about(field)
}

// about sets the field, which the problem names already.
func (f Finding) about(field string) Finding {
	f.Causes[0].Field = field
	return f
}

// part sets the field to a field inside the present field.
func (f Finding) part(name string) Finding { return f.about(f.Causes[0].Field + "." + name) }

// dependsOn sets the other object, which the problem names already.
func (f Finding) dependsOn(kind, name string) Finding {
	f.Causes[0].DependsOn = kind + " " + name
	return f
}

// in sets the object, and writes it before the message.
func (f Finding) in(kind, name string) Finding {
	f.Causes[0].Object = kind + " " + name
	f.Causes[0].message = f.Causes[0].Object + ": " + f.Causes[0].message
	return f
}

// ofListener writes the listener that has the field before the message.
func (f Finding) ofListener(name string) Finding {
	c := &f.Causes[0]
	c.Field, c.message = fmt.Sprintf("spec.listeners[%s].%s", name, c.Field), "listener "+name+": "+c.message
	return f
}

// remedy sets the remedy, and writes it after the message.
func (f Finding) remedy(format string, args ...any) Finding {
	return f.remedyAfter(": ", format, args...)
}

// advice is like remedy, for a problem whose text contains a colon.
func (f Finding) advice(format string, args ...any) Finding {
	return f.remedyAfter("; ", format, args...)
}

func (f Finding) remedyAfter(separator, format string, args ...any) Finding {
	f = f.hint(fmt.Sprintf(format, args...))
	f.Causes[0].message += separator + f.Causes[0].Remedy
	return f
}

// hint sets the remedy, which is not in the message.
func (f Finding) hint(text string) Finding {
	f.Causes[0].Remedy = text
	return f
}

// explain writes an error after the problem. The error may contain a remedy.
func (f Finding) explain(err error) Finding {
	problem, remedy := api.Split(err)
	f.Causes[0].Problem += problem
	f.Causes[0].message += problem
	if remedy != "" {
		return f.remedy("%s", remedy)
	}
	return f
}

// Place is a field of an object, and how messages refer to it.
type Place struct{ Object, Field, Text string }

// Field returns a field of the object that has the condition.
func Field(path string) Place { return Place{Field: path, Text: path} }

// InSpec returns a field of the spec of an object.
func InSpec(kind, name, field string) Place {
	object, path := kind+" "+name, "spec."+field
	return Place{Object: object, Field: path, Text: object + ": " + path}
}

// SecretField returns a key of a Secret.
func SecretField(secret, key string) Place {
	return Place{Object: "Secret " + secret, Field: "data." + key, Text: fmt.Sprintf("Secret %s key %q", secret, key)}
}

// String returns the text by which messages refer to the place.
func (p Place) String() string { return p.Text }

// atPlace sets object and field, and writes the place before the message.
func (f Finding) atPlace(p Place) Finding {
	f.Causes[0].message = p.Text + ": " + f.Causes[0].message
	f.Causes[0].Object, f.Causes[0].Field = p.Object, p.Field
	return f
}

// aboutPlace sets object and field, which the problem names already.
func (f Finding) aboutPlace(p Place) Finding {
	c := &f.Causes[0]
	c.Object, c.Field, c.Problem = p.Object, p.Field, strings.TrimPrefix(c.Problem, p.Object+": ")
	return f
}
