package inspect

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// G-10: the OpenAPI document of the inspection API contains the served paths and methods, the codes of refusals, and
// the fields of every answer.
func TestContractIsWrittenDown(t *testing.T) {
	data, err := os.ReadFile("../../../../openapi/inspection.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type operation struct {
		Description string         `json:"description"`
		Responses   map[string]any `json:"responses"`
	}
	var contract struct {
		Paths map[string]struct {
			Get, Delete *operation
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := yaml.Unmarshal(data, &contract); err != nil {
		t.Fatal(err)
	}
	a := New(Options{})
	written := map[string]string{} // the right by method and path
	for path, item := range contract.Paths {
		for method, o := range map[string]*operation{http.MethodGet: item.Get, http.MethodDelete: item.Delete} {
			if o == nil {
				continue
			}
			_, pattern := a.mux.Handler(httptest.NewRequest(method, path, nil))
			if pattern != method+" "+path {
				t.Errorf("%s %s is served as %q", method, path, pattern)
			}
			for _, code := range []int{200, 400, 401, 403, 404, 429, 503} {
				if o.Responses[strconv.Itoa(code)] == nil && (code != 404 || path != operatorPath && path != authPath) {
					t.Errorf("%s %s: code %d is not written down", method, path, code)
				}
			}
			_, right, _ := strings.Cut(o.Description, "Needs `")
			right, _, _ = strings.Cut(right, "`")
			written[method+" "+path] = right
		}
	}
	served := map[string]string{
		"GET " + gatewaysPath + "{namespace}/{name}/config": "get gateways",
		"GET " + operatorPath:                               "list gateways",
		"GET " + authPath:                                   "list gateways",
	}
	for _, e := range endpoints {
		served[e.method+" "+gatewaysPath+"{namespace}/{name}/"+e.path] = e.rights.verb + " " + e.rights.resource
	}
	if !maps.Equal(written, served) {
		t.Errorf("paths and their rights %q, want %q", written, served)
	}
	for _, answer := range []any{
		Error{}, inspection.List{}, inspection.Item{}, inspection.Config{}, inspection.Operator{}, inspection.Problem{}, finding.Finding{},
		inspection.Status{}, inspection.OffloadStatus{}, inspection.ForwardingStatus{}, inspection.JournalStatus{},
		inspection.ConfigStatus{}, inspection.Certificate{}, inspection.Stats{}, inspection.Count{},
		inspection.SessionList{}, inspection.Session{}, inspection.Kicked{}, inspection.RefusalList{},
		inspection.Refusal{}, inspection.Reach{}, inspection.ListenerReach{}, inspection.Media{}, inspection.DeniedPeer{},
		inspection.RouteMedia{}, inspection.PeerTraffic{}, inspection.GrantList{}, inspection.Grant{},
		inspection.AuthStatus{}, inspection.DrainStatus{},
		inspection.Usage{}, inspection.UsageEntry{}, inspection.UsageFigures{}, inspection.UsageCount{},
	} {
		of := reflect.TypeOf(answer)
		var fields []string
		for _, field := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" && !field.Anonymous {
				fields = append(fields, name)
			}
		}
		slices.Sort(fields)
		schema := slices.Sorted(maps.Keys(contract.Components.Schemas[of.Name()].Properties))
		if !slices.Equal(schema, fields) {
			t.Errorf("fields of %s %q, want %q", of.Name(), schema, fields)
		}
		delete(contract.Components.Schemas, of.Name())
	}
	for name := range contract.Components.Schemas {
		t.Errorf("schema %s is of no answer", name)
	}
}
