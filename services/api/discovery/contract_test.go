package discovery

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// G-10: the OpenAPI document of config discovery contains the served paths, the codes of refusals, and the fields of
// reports, lists of peers and Lists.
func TestContractIsWrittenDown(t *testing.T) {
	data, err := os.ReadFile("../../../openapi/discovery.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var contract struct {
		Paths map[string]struct {
			Get struct {
				Responses map[string]any `json:"responses"`
			} `json:"get"`
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
	s := NewServer(ServerOptions{})
	for path, item := range contract.Paths {
		_, pattern := s.mux.Handler(httptest.NewRequest(http.MethodGet, path, nil))
		if _, served, _ := strings.Cut(pattern, " "); served != path {
			t.Errorf("%s is served as %q", path, pattern)
		}
		for why, as := range refusals {
			guarded := as.code != 0 && (why == TooManyRequests || path != "/api/v1/license")
			if _, written := item.Get.Responses[strconv.Itoa(as.code)]; guarded && !written {
				t.Errorf("%s: %s is answered with %d, which is not written down", path, why, as.code)
			}
		}
	}
	if want := []string{
		"/api/v1/configs", "/api/v1/configs/{namespace}", "/api/v1/configs/{namespace}/{name}", "/api/v1/license",
		"/api/v1/reports",
	}; !slices.Equal(
		slices.Sorted(maps.Keys(contract.Paths)), want) {
		t.Errorf("paths %q, want %q", slices.Sorted(maps.Keys(contract.Paths)), want)
	}
	written := func(schema string) []string {
		return slices.Sorted(maps.Keys(contract.Components.Schemas[schema].Properties))
	}
	for schema, full := range map[string]any{
		"Report": Report{
			ID: "a", Pod: "a", Revision: "a", Accepted: true, Error: "a", Allocations: 1, Draining: true, Offload: "a",
			Peer: "a", Sender: "a",
		},
		"Peers":   Peers{Problem: "a"},
		"PeerKey": PeerKey{},
		"List":    List{Idle: []string{"a"}},
		"Peer":    Peer{Draining: true, Other: netip.IPv4Unspecified()},
	} {
		var fields map[string]any
		if sent, err := json.Marshal(full); err != nil || json.Unmarshal(sent, &fields) != nil {
			t.Fatal(err)
		}
		if len(fields) != reflect.TypeOf(full).NumField() {
			t.Fatalf("set every field of %s here", schema)
		}
		if sent := slices.Sorted(maps.Keys(fields)); !slices.Equal(written(schema), sent) {
			t.Errorf("fields of %s %q, want %q", schema, written(schema), sent)
		}
	}
}
