package charts

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// schema is the part of a chart's schema that says where values are.
type schema struct {
	Properties map[string]schema
}

// parents are the paths of the objects that have values with names of ours.
func (s schema) parents(path string) (all []string) {
	if len(s.Properties) > 0 {
		all = append(all, path)
	}
	for name, below := range s.Properties {
		all = append(all, below.parents(path+"/"+name)...)
	}
	return all
}

// A value that the chart does not know is refused, wherever it stands, and the message says where.
func TestValues_OthersAreRefused(t *testing.T) {
	for _, c := range []string{app, crds} {
		var s schema
		if err := json.Unmarshal([]byte(read(t, c+"/values.schema.json")), &s); err != nil {
			t.Fatal(err)
		}
		paths := s.parents("")
		if len(paths) < 2 {
			t.Fatalf("%s: only %q have values", c, paths)
		}
		for _, path := range paths {
			keys := strings.ReplaceAll(strings.TrimPrefix(path+"/", "/"), "/", ".")
			values, err := strvals.Parse(keys + "replicsa=1")
			if err != nil {
				t.Fatal(err)
			}
			set, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			_, err = release{chart: c, set: string(set)}.templates(t)
			if err == nil || !strings.Contains(err.Error(), "'"+path+"'") || !strings.Contains(err.Error(), "replicsa") {
				t.Errorf("%s: %sreplicsa is not refused by its path: %v", c, keys, err)
			}
		}
	}
}

// A value that makes no sense is refused.
func TestValues_NonsenseIsRefused(t *testing.T) {
	for set, field := range map[string]string{
		`stunnerGatewayOperator: {deployment: {replicas: two}}`:                                                    "/stunnerGatewayOperator/deployment/replicas",
		`stunnerGatewayOperator: {deployment: {replicas: -1}}`:                                                     "/stunnerGatewayOperator/deployment/replicas",
		`stunnerGatewayOperator: {discovery: {auth: lax}}`:                                                         "/stunnerGatewayOperator/discovery/auth",
		`stunnerGatewayOperator: {dataplane: {mode: legacy}}`:                                                      "/stunnerGatewayOperator/dataplane/mode",
		`stunnerGatewayOperator: {deployment: {container: {manager: {image: {digest: latest}}}}}`:                  "/stunnerGatewayOperator/deployment/container/manager/image/digest",
		`stunnerAuthService: {jwt: {jwksURL: "http://id.example.org/keys"}}`:                                       "/stunnerAuthService/jwt/jwksURL",
		`stunnerAuthService: {jwt: {audience: calls}}`:                                                             "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {jwksURL: "https://id.example.org/keys"}}`:                                      "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {existingSecret: web-app}}`:                                                     "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {issuer: "https://id.example.org"}}`:                                            "stunnerAuthService.jwt.audience:",
		`stunnerAuthService: {jwt: {issuer: "https://id.example.org", audience: calls}}`:                           "stunnerAuthService.jwt.jwksURL:",
		`stunnerAuthService: {jwt: {issuer: me, audience: calls, jwksURL: "https://me", existingSecret: web-app}}`: "stunnerAuthService.jwt.existingSecret:",
		`watchNamespaces: [tenant]`:                                                                                "defaults.gatewayConfig.namespace",
		`defaults: {gatewayConfig: {namespace: elsewhere}}`:                                                        "defaults.credentials.create",
		`commonLabels: {team: 1}`:                                                                                  "/commonLabels/team",
	} {
		if _, err := (release{chart: app, set: set}).templates(t); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: want an error that names %s, got %v", set, field, err)
		}
	}
}

// The page for those who come from the existing chart says which of its values are there still, and which are refused.
func TestMigration_NamesWhatIsThereAndWhatIsNot(t *testing.T) {
	var all schema
	if err := json.Unmarshal([]byte(read(t, app+"/values.schema.json")), &all); err != nil {
		t.Fatal(err)
	}
	there, gone, ok := strings.Cut(read(t, "docs/migration.md"), "Others are gone")
	if !ok {
		t.Fatal("the page does not say what is gone")
	}
	for text, want := range map[string]bool{there: true, gone: false} {
		values := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1)
		if len(values) == 0 {
			t.Fatal("no value found")
		}
		for _, value := range values {
			stem, names, _ := strings.Cut(strings.TrimSuffix(value[1], "}"), "{")
			for _, name := range strings.Split(names, ",") {
				if path := stem + name; all.knows(strings.Split(path, ".")) != want {
					t.Errorf("%s is a value: %t", path, !want)
				}
			}
		}
	}
}

func (s schema) knows(path []string) bool {
	below, ok := s.Properties[path[0]]
	return ok && (len(path) == 1 || below.knows(path[1:]))
}

// What the pages tell people to set can be set: what stands on one line together, in the namespace that it names.
func TestDocs_SetValuesThatExist(t *testing.T) {
	setting, namespace := regexp.MustCompile(`--set ('[^']+'|[\w.=/-]+)`), regexp.MustCompile(`--namespace (\S+)`)
	found := 0
	for _, page := range []string{"docs/install.md", "docs/migration.md", "README.md", app + "/README.md", crds + "/README.md", app + "/templates/NOTES.txt", crds + "/templates/NOTES.txt"} {
		for line := range strings.Lines(read(t, page)) {
			var settings []string
			for _, match := range setting.FindAllStringSubmatch(line, -1) {
				settings = append(settings, strings.Trim(match[1], "'"))
			}
			if len(settings) == 0 {
				continue
			}
			found++
			values := map[string]any{}
			for _, s := range settings {
				if err := strvals.ParseInto(s, values); err != nil {
					t.Errorf("%s: %s: %v", page, s, err)
				}
			}
			set, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			r := release{set: string(set)}
			if named := namespace.FindStringSubmatch(line); named != nil && !strings.Contains(named[1], "{") {
				r.namespace = named[1]
			}
			r.chart = app
			_, inApp := r.templates(t)
			r.chart = crds
			_, inCRDs := r.templates(t)
			if inApp != nil && inCRDs != nil {
				t.Errorf("%s: %s: %v, %v", page, line, inApp, inCRDs)
			}
		}
	}
	if found == 0 {
		t.Error("no --set found")
	}
}
