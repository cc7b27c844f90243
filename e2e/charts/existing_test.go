package charts

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// The images in the values of the existing chart.
var existingImages = []string{
	"stunnerGatewayOperator.deployment.container.manager.image",
	"stunnerAuthService.deployment.container.authService.image",
	"stunnerGatewayOperator.dataplane.spec.image",
}

// existing returns all values of the existing chart, without the values at the given paths, and with others replaced.
func existing(t *testing.T, without []string, set string) release {
	t.Helper()
	var values, more map[string]any
	text := []byte(harnesstest.Read(t, "e2e/charts/testdata/existing/values.yaml"))
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for _, path := range without {
		unstructured.RemoveNestedField(values, strings.Split(path, ".")...)
	}
	if err := yaml.Unmarshal([]byte(set), &more); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(merge(values, more))
	if err != nil {
		t.Fatal(err)
	}
	return release{chart: app, set: string(text)}
}

// merge sets the values of more in values, and returns the result. Unlike the libraries of Helm it sets null values.
func merge(values, more map[string]any) map[string]any {
	for key, value := range more {
		below, isMap := values[key].(map[string]any)
		if above, both := value.(map[string]any); isMap && both {
			value = merge(below, above)
		}
		values[key] = value
	}
	return values
}

// All values of the existing chart, without its images, install the images of this product, with flags and values that
// its programs accept.
func TestExisting_ValuesInstallThisProduct(t *testing.T) {
	bin := harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth)
	const flags = `
stunnerGatewayOperator:
  deployment: {container: {manager: {args: [--leader-elect, --health-probe-bind-address=:8081,
    --metrics-bind-address=:8080, --zap-log-level=debug, --zap-encoder, json, --zap-devel, --throttle-timeout=1s,
    --pprof-bind-address=:6060, --dataplane-mode=managed, --config-discovery-address=:13478,
    --disable-endpontslice-controller, --enable-finalizer]}}}
  dataplane: {spec: {args: [-w, -c, k8s, --cds-server-address=10.0.0.1, --kubeconfig=x]}}
stunnerAuthService:
  deployment: {container: {authService: {args: [-p, "8088", -l, all:DEBUG, --cds-server-address=10.0.0.1,
    --kubeconfig=x, -n=z]}}}`
	for title, set := range map[string]string{
		"defaults": `{}`,
		"logging": `
logging: {operator: {level: debug, format: json}, dataplane: {format: json}, authService: {format: json}}`,
		"flags": flags,
	} {
		objects := byName(t, existing(t, existingImages, set).objects(t))
		for name, program := range map[string]string{
			"Deployment/" + home + "/stunner-gateway-operator": "operator",
			"Deployment/" + home + "/stunner-auth":             "auth",
		} {
			c := container(t, objects[name])
			if want := "ghcr.io/stunner-gateway/" + program + ":0.1.0"; c.Image != want {
				t.Errorf("%s: %s runs %s, want %s", title, name, c.Image, want)
			}
			args := slices.Clone(c.Args)
			for i := range args {
				args[i] = strings.NewReplacer("$(POD_NAMESPACE)", home, "$(POD_IP)", "10.0.0.2").Replace(args[i])
			}
			accepted(t, title, filepath.Join(bin, program), args)
		}
		dataplane := objects["Dataplane/default"].Object
		if image := at(dataplane, "spec.image"); image != nil {
			t.Errorf("%s: the dataplane runs %v", title, image)
		}
		args, _, _ := unstructured.NestedStringSlice(dataplane, "spec", "args")
		accepted(t, title, filepath.Join(bin, "stunnerd"), args)
	}
}

// accepted checks that a program accepts its flags. All errors of a command line are reported at once. So with one
// additional wrong flag the program does not start, and must report only this flag.
func accepted(t *testing.T, title, program string, args []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, append(args, "--log-format=wrong")...).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err == nil || len(lines) != 2 || !strings.Contains(lines[0], "--log-format") ||
		!strings.Contains(lines[0], "wrong") {
		t.Errorf("%s: %s %q: %v\n%s", title, filepath.Base(program), args, err, out)
	}
}

// Values with which the chart would install something else are rejected together, each with its remedy.
func TestExisting_ProblemsAreReportedTogether(t *testing.T) {
	operator, auth, dataplane := existingImages[0]+": ", existingImages[1]+": ", existingImages[2]+": "
	const remedy = ": delete name, tag and digest"
	for set, want := range map[string][]string{
		`{}`: {
			operator + "docker.io/l7mp/stunner-gateway-operator does not have the flags of this chart" + remedy,
			auth + "docker.io/l7mp/stunner-auth-server does not have the flags of this chart" + remedy,
			dataplane + "docker.io/l7mp/stunnerd supports neither TLS nor tokens, so it would get no config" + remedy +
				", or set stunnerGatewayOperator.discovery.auth=pod-address",
		},
		`
stunnerGatewayOperator: {discovery: {auth: permissive}, dataplane: {mode: legacy}}
stunnerAuthService: {enabled: false}
logging: {operator: {level: loud, format: xml}, dataplane: {format: xml}, authService: {format: console}}`: {
			operator, dataplane, "stunnerGatewayOperator.dataplane.mode: legacy is not supported",
			"logging.operator.level: loud is unknown: use debug, info, warn or error, " +
				"or set stunnerGatewayOperator.log.level instead",
			"logging.operator.format: xml is unknown: use text or json", "logging.dataplane.format: xml ",
			"logging.authService.format: console ",
		},
		`{stunnerGatewayOperator: {discovery: {auth: "off"}}}`:       {operator, auth},
		`{stunnerGatewayOperator: {discovery: {auth: pod-address}}}`: {operator, auth},
		`{defaults: {create: false}}`:                                {operator, auth},
		`{stunnerGatewayOperator: {enabled: false, dataplane: {spec: {image: "l7mp/stunnerd:dev"}}}}`: {
			auth, dataplane + "l7mp/stunnerd:dev supports neither",
		},
		`
stunnerGatewayOperator:
  deployment: {container: {manager: {image: {name: mirror.example.org/stunner-gateway-operator}}}}
  dataplane: {image: {name: l7mp/stunnerd}}
stunnerAuthService: {deployment: {container: {authService: {image: {name: l7mp/stunner-auth-server}}}}}`: {
			operator + "mirror.example.org/stunner-gateway-operator ", auth + "l7mp/stunner-auth-server ", dataplane,
			"stunnerGatewayOperator.dataplane.image: l7mp/stunnerd ",
		},
	} {
		_, err := existing(t, nil, set).templates(t)
		if err == nil {
			t.Errorf("%s: no error", set)
			continue
		}
		for _, line := range want {
			if !strings.Contains(err.Error(), "\n- "+line) {
				t.Errorf("%s: %v\ndoes not contain %q", set, err, line)
			}
		}
		if problems := strings.Count(err.Error(), "\n- "); problems != len(want) {
			t.Errorf("%s: %d problems, want %d: %v", set, problems, len(want), err)
		}
	}
}

// With config discovery for dataplanes without tokens, the image of an existing Dataplane is kept.
func TestExisting_DataplaneImageIsKept(t *testing.T) {
	r := existing(t, existingImages[:2], `stunnerGatewayOperator: {discovery: {auth: pod-address}}`)
	objects := byName(t, r.objects(t))
	if image := at(objects["Dataplane/default"].Object, "spec.image"); image != "docker.io/l7mp/stunnerd:1.2.0" {
		t.Errorf("the dataplane runs %v", image)
	}
}

// The notes name the values without an effect, with the reason.
func TestExisting_NotesNameIgnoredValues(t *testing.T) {
	for set, want := range map[string]string{
		`standardCrds: {enabled: false}`:    "",
		`{}`:                                "standardCrds.enabled: crds.gatewayAPI.enabled installs the CRDs of the Gateway API",
		`experimentalCrds: {enabled: true}`: "experimentalCrds.enabled: ",
		`stunnerGatewayOperator: {customerKey: key}`: "stunnerGatewayOperator.customerKey: ",
		`stunnerGatewayOperator: {log: {level: "all:WARN"}}`: "logging.operator.level: " +
			"stunnerGatewayOperator.log.level is set",
		`stunnerGatewayOperator: {log: {format: json}}`: "logging.operator.format: " +
			"stunnerGatewayOperator.log.format is set",
		`stunnerAuthService: {log: {format: json}}`: "logging.authService.format: " +
			"stunnerAuthService.log.format is set",
		`{defaults: {create: false}, logging: {dataplane: {format: json}}}`: "logging.dataplane.format: " +
			"without defaults.create",
	} {
		notes := existing(t, existingImages, set).notes(t)
		if !strings.Contains(notes, want) || strings.Contains(notes, "have no effect") != (want != "") {
			t.Errorf("%s: the notes do not contain %q:\n%s", set, want, notes)
		}
	}
}

// A key without a value is null in YAML, and means that the value is not set.
func TestExisting_ValuesMayBeNull(t *testing.T) {
	common := []string{"affinity", "tolerations", "imagePullSecrets", "topologySpreadConstraints"}
	pods := append([]string{"podLabels", "podAnnotations"}, common...)
	for parent, keys := range map[string][]string{
		"stunnerGatewayOperator: {deployment: {%s: null}}": pods,
		"stunnerAuthService: {deployment: {%s: null}}":     pods,
		"stunnerGatewayOperator: {dataplane: {spec: {%s: null}}}": append([]string{
			"replicas", "command", "args", "env", "labels", "annotations", "containerSecurityContext", "securityContext",
			"hostNetwork",
		}, common...),
	} {
		for _, key := range keys {
			set := fmt.Sprintf(parent, key)
			dataplane := byName(t, existing(t, existingImages, set).objects(t))["Dataplane/default"].Object
			for name, value := range at(dataplane, "spec").(map[string]any) {
				if value == nil {
					t.Errorf("%s: the Dataplane has %s: null", set, name)
				}
			}
		}
	}
}
