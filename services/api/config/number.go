package config

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// number is an integer in a document, or a placeholder in the place of an integer.
type number[T int | int32 | int64] struct {
	value       T
	placeholder string
}

// UnmarshalJSON accepts a number, or a string that consists of one placeholder.
func (n *number[T]) UnmarshalJSON(data []byte) error {
	var text string
	if data[0] != '"' {
		return json.Unmarshal(data, &n.value)
	}
	if err := json.Unmarshal(data, &text); err != nil || !isVariable(text) {
		return &json.UnmarshalTypeError{Value: "string", Type: reflect.TypeFor[T]()}
	}
	n.placeholder = text
	return nil
}

func isVariable(text string) bool { return text != "" && variable.FindString(text) == text }

// placeholders replaces the placeholders that only a file may contain: in the place of integers, and of credentials. It
// collects the errors.
type placeholders struct {
	lookup func(name string) string // nil if placeholders are not allowed
	findings
}

// resolve returns the value of a number, or adds an error. The error does not contain the value of the variable,
// because a wrongly named variable may contain a secret.
func resolve[T int | int32 | int64](in *placeholders, field string, n number[T]) T {
	if n.placeholder == "" {
		return n.value
	}
	name, _ := variableName(n.placeholder)
	if in.lookup == nil {
		in.add(field, "", "cannot be read from a JSON string", "write a whole number")
		return 0
	}
	text := in.lookup(name)
	if text == "" {
		in.unset(field, name)
		return 0
	}
	value, err := strconv.ParseInt(text, 10, reflect.TypeFor[T]().Bits())
	if err != nil {
		in.add(field, name, "has a value that is no whole number",
			"set the variable to a number in the environment of the process")
	}
	return T(value)
}
