package charts

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// schema is the part of a chart's values schema that lists properties.
type schema struct {
	Properties map[string]schema
}

// Every object of the schemas with defined properties rejects other properties, so that a misspelt name is an error at
// any depth.
func TestSchema_IsClosedAtEveryDepth(t *testing.T) {
	for chart, atLeast := range map[string]int{app: 300, crds: 3} {
		var root map[string]any
		if err := json.Unmarshal([]byte(harnesstest.Read(t, chart+"/values.schema.json")), &root); err != nil {
			t.Fatal(err)
		}
		objects := 0
		var walk func(path string, at any)
		walk = func(path string, at any) {
			switch at := at.(type) {
			case []any:
				for _, below := range at {
					walk(path, below)
				}
			case map[string]any:
				properties, known := at["properties"].(map[string]any)
				// global has values of all charts
				if open := at["additionalProperties"] != false; known && open && path != "/global" {
					t.Errorf("%s: %s accepts unknown fields", chart, path)
				}
				objects++
				for name, below := range properties {
					walk(path+"/"+name, below)
				}
				for _, keyword := range []string{"items", "additionalProperties", "anyOf", "oneOf", "allOf"} {
					walk(path, at[keyword])
				}
			}
		}
		walk("", root)
		definitions, _ := root["$defs"].(map[string]any)
		for name, definition := range definitions {
			walk("$defs/"+name, definition)
		}
		if objects < atLeast {
			t.Errorf("the schema of %s has only %d objects", chart, objects)
		}
	}
}

// Invalid values are rejected.
func TestValues_InvalidOnesAreRejected(t *testing.T) {
	for set, field := range map[string]string{
		`replicsa: 1`: "at '': additional properties 'replicsa'",
		`stunnerGatewayOperator: {deployment: {replicsa: 1}}`:                                                           "at '/stunnerGatewayOperator/deployment': additional properties 'replicsa'",
		`stunnerGatewayOperator: {deployment: {replicas: two}}`:                                                         "/stunnerGatewayOperator/deployment/replicas",
		`stunnerGatewayOperator: {deployment: {replicas: -1}}`:                                                          "/stunnerGatewayOperator/deployment/replicas",
		`stunnerGatewayOperator: {discovery: {auth: lax}}`:                                                              "/stunnerGatewayOperator/discovery/auth",
		`stunnerGatewayOperator: {dataplane: {mode: legacy}}`:                                                           "stunnerGatewayOperator.dataplane.mode:",
		`stunnerGatewayOperator: {deployment: {container: {manager: {image: {digest: latest}}}}}`:                       "/stunnerGatewayOperator/deployment/container/manager/image/digest",
		`stunnerAuthService: {jwt: {jwksURL: "http://id.example.org/keys"}}`:                                            "/stunnerAuthService/jwt/jwksURL",
		`stunnerAuthService: {ingress: {enabled: true}}`:                                                                "stunnerAuthService.ingress.enabled:",
		`stunnerAuthService: {httpRoute: {enabled: true, parentRefs: [{name: web}]}}`:                                   "stunnerAuthService.httpRoute.enabled:",
		`stunnerAuthService: {policy: {existingConfigMap: a, existingSecret: b}}`:                                       "stunnerAuthService.policy.existingSecret:",
		`stunnerAuthService: {policy: {clusterKeys: true}}`:                                                             "stunnerAuthService.policy.clusterKeys:",
		`stunnerAuthService: {revocations: {enabled: true}}`:                                                            "stunnerAuthService.revocations.enabled:",
		`stunnerAuthService: {policy: {existingSecret: p},clusters: {existingSecret: c}, revocations: {enabled: true}}`: "stunnerAuthService.revocations.enabled:",
		`stunnerAuthService: {policy: {existingConfigMap: a}, jwt: {issuer: me, audience: calls, existingSecret: b}}`:   "stunnerAuthService.policy:",
		`stunnerAuthService: {clusters: {existingSecret: ../a}}`:                                                        "/stunnerAuthService/clusters/existingSecret",
		`stunnerAuthService: {policy: {existingConfigMap: ../a}}`:                                                       "/stunnerAuthService/policy/existingConfigMap",
		`stunnerAuthService: {jwt: {audience: calls}}`:                                                                  "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {jwksURL: "https://id.example.org/keys"}}`:                                           "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {existingSecret: web-app}}`:                                                          "stunnerAuthService.jwt.issuer:",
		`stunnerAuthService: {jwt: {issuer: "https://id.example.org"}}`:                                                 "stunnerAuthService.jwt.audience:",
		`stunnerAuthService: {jwt: {issuer: "https://id.example.org", audience: calls}}`:                                "stunnerAuthService.jwt.jwksURL:",
		`stunnerAuthService: {jwt: {issuer: me, audience: calls, jwksURL: "https://me", existingSecret: web-app}}`:      "stunnerAuthService.jwt.existingSecret:",
		`stunnerAuthService: {corsOrigins: [nonsense]}`:                                                                 "/stunnerAuthService/corsOrigins/0",
		`stunnerAuthService: {corsOrigins: ["*"]}`:                                                                      "/stunnerAuthService/corsOrigins/0",
		`stunnerAuthService: {corsOrigins: nonsense}`:                                                                   "/stunnerAuthService/corsOrigins",
		`stunnerAuthService: {corsOrigins: ["https://a.example.org/"]}`:                                                 "/stunnerAuthService/corsOrigins/0",
		`stunnerAuthService: {trustedProxies: [10.0.0.0/8, ingress]}`:                                                   "/stunnerAuthService/trustedProxies/1",
		`stunnerAuthService: {trustedProxies: [10.0.0.0/33]}`:                                                           "/stunnerAuthService/trustedProxies/0",
		`stunnerAuthService: {trustedProxies: [10.0.0.256]}`:                                                            "/stunnerAuthService/trustedProxies/0",
		`stunnerAuthService: {gateways: [media]}`:                                                                       "/stunnerAuthService/gateways/0",
		`stunnerAuthService: {gateways: ["media/*", "a/b/c"]}`:                                                          "/stunnerAuthService/gateways/1",
		`stunnerAuthService: {service: {type: LoadBalancer}}`:                                                           "stunnerAuthService.service.type:",
		`stunnerAuthService: {service: {type: NodePort}}`:                                                               "stunnerAuthService.service.type:",
		`watchNamespaces: [tenant]`:                                                                                     "defaults.gatewayConfig.namespace",
		`defaults: {gatewayConfig: {namespace: elsewhere}}`:                                                             "defaults.credentials.create",
		`commonLabels: {team: 1}`:                                                                                       "/commonLabels/team",
		`stunnerGatewayOperator: {dataplane: {spec: {hostNetwrk: true}}}`:                                               "'hostNetwrk'",
		`stunnerGatewayOperator: {dataplane: {spec: {autoscaling: {maxReplica: 3}}}}`:                                   "'maxReplica'",
		`stunnerGatewayOperator: {scaler: {enabled: false}, dataplane: {spec: {autoscaling: {maxReplicas: 3}}}}`:        "stunnerGatewayOperator.scaler.enabled:",
		`stunnerGatewayOperator: {dataplane: {spec: {image: {nam: a}}}}`:                                                "'nam'",
		`stunnerGatewayOperator: {dataplane: {spec: {resources: {limit: {memory: 1Gi}}}}}`:                              "'limit'",
		`stunnerGatewayOperator: {deployment: {affinity: {nodeAffinty: {}}}}`:                                           "'nodeAffinty'",
		`stunnerGatewayOperator: {deployment: {tolerations: [{keys: a}]}}`:                                              "'keys'",
		`stunnerGatewayOperator: {deployment: {securityContext: {runAsUsr: 1}}}`:                                        "'runAsUsr'",
		`stunnerGatewayOperator: {deployment: {container: {manager: {env: [{name: A, valu: b}]}}}}`:                     "'valu'",
		`stunnerGatewayOperator: {deployment: {extraVolumes: [{name: a, configmap: {name: b}}]}}`:                       "'configmap'",
		`stunnerGatewayOperator: {deployment: {extraContainers: [{name: a, ports: [{port: 1}]}]}}`:                      "'port'",
		`stunnerGatewayOperator: {workloadPolicy: {hostNetwork: "yes"}}`:                                                "/stunnerGatewayOperator/workloadPolicy/hostNetwork",
		`stunnerGatewayOperator: {log: {level: DEBUG}}`:                                                                 "/stunnerGatewayOperator/log/level",
		`stunnerGatewayOperator: {log: {level: "all:LOUD"}}`:                                                            "/stunnerGatewayOperator/log/level",
		`stunnerAuthService: {log: {level: "all:LOUD"}}`:                                                                "/stunnerAuthService/log/level",
		`stunnerGatewayOperator: {discovery: {readers: [x]}}`:                                                           "/stunnerGatewayOperator/discovery/readers/0",
		`stunnerGatewayOperator: {discovery: {readers: ["a/b,c"]}}`:                                                     "/stunnerGatewayOperator/discovery/readers/0",
		`stunnerGatewayOperator: {clusterDomain: "cluster.local # x"}`:                                                  "/stunnerGatewayOperator/clusterDomain",
		`stunnerGatewayOperator: {controllerName: calls}`:                                                               "/stunnerGatewayOperator/controllerName",
		`watchNamespaces: ["a,b"]`:                                                                                      "/watchNamespaces/0",
		`stunnerAuthService: {jwt: {issuer: "a b", audience: calls}}`:                                                   "/stunnerAuthService/jwt/issuer",
		`stunnerAuthService: {service: {ipFamilyPolicy: Dual}}`:                                                         "/stunnerAuthService/service/ipFamilyPolicy",
		`stunnerAuthService: {ingress: {tls: [{secret: a}]}}`:                                                           "'secret'",
		`stunnerAuthService: {jwt: {issuer: me, audience: calls, existingSecret: web-app}, httpRoute: {enabled: true}}`: "stunnerAuthService.httpRoute.parentRefs:",
		`stunnerAuthService: {autoscaling: {minReplicas: 0}}`:                                                           "/stunnerAuthService/autoscaling/minReplicas",
		`stunnerAuthService: {jwt: {issuer: me, audience: a, jwksURL: "https://me", jwksFile: /keys}}`:                  "stunnerAuthService.jwt.jwksFile:",
		`defaults: {gatewayConfig: {spec: {relam: a}}}`:                                                                 "'relam'",
		`pods: {readinessProbe: {periodSecond: 1}}`:                                                                     "'periodSecond'",
		`pods: {dnsConfig: {nameserver: [192.0.2.1]}}`:                                                                  "'nameserver'",
		`networkPolicy: {discoveryFrom: [{ipblock: {}}]}`:                                                               "'ipblock'",
		`podDisruptionBudget: {unhealthyPodEvictionPolicy: Never}`:                                                      "/podDisruptionBudget/unhealthyPodEvictionPolicy",
	} {
		if _, err := (release{chart: app, set: set}).templates(t); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: want an error that names %s, got %v", set, field, err)
		}
	}
}

// By default the auth service returns credentials for the Gateways of the release's namespace, or for the Gateways in
// the value gateways. Without tokens, only pods of the cluster may connect, and the notes say so.
func TestAuth_WithoutTokensIsForTheClusterOnly(t *testing.T) {
	for set, want := range map[string]struct {
		gateways string
		from     int
		notes    []string
	}{
		`{}`: {"--gateways=$(POD_NAMESPACE)/*", 1, []string{
			"EVERY POD of the cluster", "the Gateways of namespace stunner-system", "stunnerAuthService.gateways",
		}},
		`{gateways: ["a/*", "b/x"]}`: {
			"--gateways=a/*,b/x", 1, []string{"EVERY POD of the cluster", "the Gateways a/*, b/x"},
		},
		`{service: {type: LoadBalancer}, jwt: {issuer: me, audience: calls, existingSecret: web-app}}`: {
			"--gateways=$(POD_NAMESPACE)/*", 0, nil,
		},
	} {
		r := release{chart: app, set: `stunnerAuthService: ` + set}
		objects := byName(t, r.objects(t))
		args := container(t, objects["Deployment/"+home+"/stunner-auth"]).Args
		if !slices.Contains(args, want.gateways) {
			t.Errorf("%s: flags %q, want %s", set, args, want.gateways)
		}
		policy := objects["NetworkPolicy/"+home+"/stunner-auth"].Object
		if from, _ := at(policy, "spec.ingress.0.from").([]any); len(from) != want.from {
			t.Errorf("%s: ingress from %v", set, from)
		}
		notes := r.notes(t)
		for _, words := range want.notes {
			if !strings.Contains(notes, words) {
				t.Errorf("%s: the notes do not contain %q:\n%s", set, words, notes)
			}
		}
		if open := strings.Contains(notes, "EVERY POD"); notes == "" || open != (want.from > 0) {
			t.Errorf("%s: notes\n%s", set, notes)
		}
	}
}

// The values of the existing chart in the table of the migration page are values of this chart.
func TestMigration_ListsSupportedValues(t *testing.T) {
	var all schema
	if err := json.Unmarshal([]byte(harnesstest.Read(t, app+"/values.schema.json")), &all); err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(harnesstest.Read(t, "docs/migration/values.md"), "\n## Values\n")
	section, _, _ = strings.Cut(section, "\n## ")
	values := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1)
	if len(values) < 10 {
		t.Fatalf("only %d values found", len(values))
	}
	for _, value := range values {
		stem, names, _ := strings.Cut(strings.TrimSuffix(value[1], "}"), "{")
		for _, name := range strings.Split(names, ",") {
			if path := stem + name; !all.knows(strings.Split(path, ".")) {
				t.Errorf("%s is no value", path)
			}
		}
	}
}

func (s schema) knows(path []string) bool {
	below, ok := s.Properties[path[0]]
	return ok && (len(path) == 1 || below.knows(path[1:]))
}

// Values that the documentation sets with --set on one line exist together, in the documented namespace.
func TestDocs_SetValuesThatExist(t *testing.T) {
	setting, namespace := regexp.MustCompile(`--set ('[^']+'|[\w.=/-]+)`), regexp.MustCompile(`--namespace (\S+)`)
	found := 0
	for _, page := range []string{
		"docs/install.md", "docs/migration.md", "docs/migration/users.md", "docs/migration/values.md",
		"README.md", app + "/README.md", crds + "/README.md", app + "/templates/NOTES.txt", crds + "/templates/NOTES.txt",
	} {
		for line := range strings.Lines(harnesstest.Read(t, page)) {
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
