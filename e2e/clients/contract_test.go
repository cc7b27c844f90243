package clients

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/clients/go/iceservers"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// schema is the part of a schema of OpenAPI that the types must agree with.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Format     string            `json:"format"`
	Required   []string          `json:"required"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// The types of the Go client have all fields of openapi/auth.yaml, with the same types. Those without omitempty are
// required.
func TestContractOfTheGoClient(t *testing.T) {
	text := harnesstest.Read(t, "services/auth/internal/rest/openapi.json")
	var contract struct {
		Paths      map[string]any
		Components struct{ Schemas map[string]schema }
	}
	harnesstest.NoError(t, json.Unmarshal([]byte(text), &contract))
	if contract.Paths["/v1/ice-servers"] == nil {
		t.Error("the contract does not have the path of the client")
	}
	for name, v := range map[string]any{
		"IceServersRequest": iceservers.Request{}, "GatewayRef": iceservers.GatewayRef{},
		"CredentialScope": iceservers.CredentialScope{}, "IceServers": iceservers.ICEServers{},
		"IceServer": iceservers.ICEServer{}, "ParameterError": iceservers.ParameterError{},
	} {
		s, of := contract.Components.Schemas[name], reflect.TypeOf(v)
		fields := map[string]bool{}
		for i := range of.NumField() {
			tag, optional, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			fields[tag] = true
			if required := slices.Contains(s.Required, tag); required != (optional == "") {
				t.Errorf("%s.%s: required is %t in the contract", name, tag, required)
			}
			want, got := typeOf(s.Properties[tag]), of.Field(i).Type.String()
			if got = strings.TrimPrefix(got, "*"); got != want && !(want == "string" && got == "iceservers.Secret") {
				t.Errorf("%s.%s is a %s, and %s in the contract", name, tag, got, want)
			}
		}
		have, want := slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(s.Properties))
		if !slices.Equal(have, want) {
			t.Errorf("%s has the fields %v, and %v in the contract", name, have, want)
		}
	}
}

// typeOf returns the Go type of a schema.
func typeOf(s schema) string {
	switch {
	case s.Ref != "":
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		return "iceservers." + strings.Replace(name, "IceServer", "ICEServer", 1)
	case s.Type == "array":
		return "[]" + typeOf(*s.Items)
	case s.Format == "date-time":
		return "time.Time"
	}
	return map[string]string{"string": "string", "boolean": "bool", "integer": "int64"}[s.Type]
}
