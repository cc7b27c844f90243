package harnesstest

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Conforms compares a JSON document with a schema, which is a file of the repository.
func Conforms(t testing.TB, schema string, data []byte) {
	t.Helper()
	compiled, err := jsonschema.NewCompiler().Compile(filepath.Join(Root(t), schema))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	if err := compiled.Validate(value); err != nil {
		t.Errorf("%v:\n%s", err, data)
	}
}
