// Package api_test holds the rules for the imports of this module.
package api_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

const module = "github.com/stunner-gateway/stunner/services/api/"

func TestDependencies(t *testing.T) {
	kubernetes := []string{"k8s.io/...", "sigs.k8s.io/controller-runtime/...", "sigs.k8s.io/gateway-api/..."}
	clock := []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After"}
	deptest.Check(t, []deptest.Rule{
		{
			Package:   module + "credential",
			Forbidden: []string{"os", "io/fs", "net", "net/http", "github.com/stunner-gateway/stunner/..."},
			Calls:     clock,
			Why:       "dataplane and auth service must agree about credentials; tests can only show that if the result depends on the arguments alone",
		},
		{
			Package: module + "config",
			Forbidden: append(
				[]string{"os", "io/fs", "net/http", "log", module + "discovery", module + "telemetry", module + "v1"},
				kubernetes...,
			),
			Calls: clock,
			Why:   "a config must mean the same in every process: it is a value without input and output",
		},
		{
			Package:   module + "discovery",
			Forbidden: append([]string{module + "telemetry", module + "v1"}, kubernetes...),
			Why:       "the dataplane and the auth service run without Kubernetes",
		},
		{
			Package: module + "inspection",
			Forbidden: append(
				[]string{"os", "io/fs", "net/http", module + "discovery", module + "telemetry", module + "v1"}, kubernetes...,
			),
			Calls: clock,
			Why:   "dataplanes, the operator and command lines exchange these types: they are values without input and output",
		},
		{
			Package:   module + "finding",
			Forbidden: append([]string{"os", "net/http", "github.com/stunner-gateway/stunner/..."}, kubernetes...),
			Calls:     clock,
			Why:       "all services and command lines exchange findings: they are values without input and output",
		},
		{
			Package:   module + "ratelimit",
			Forbidden: append([]string{"net/http", "github.com/stunner-gateway/stunner/..."}, kubernetes...),
			Calls:     clock,
			Why:       "rate limits of all services use it, and tests set the time",
		},
		{
			Package:   module + "cli",
			Forbidden: append([]string{"os", "net/http", "github.com/stunner-gateway/stunner/..."}, kubernetes...),
			Why:       "the environment and the output are arguments, so that tests can set them",
		},
		{
			Package:   module + "telemetry",
			Forbidden: append([]string{module + "config", module + "discovery", module + "v1"}, kubernetes...),
			Why:       "logs, metrics and probes do not depend on the configuration of a service",
		},
		{
			Package: module + "v1",
			Forbidden: []string{
				module + "config", module + "discovery", "k8s.io/client-go/...",
				"sigs.k8s.io/controller-runtime/pkg/client/...",
			},
			Why: "other programs import the kinds: they must not bring a client of the API server or the dataplane config",
		},
	})
}

// F-06: dataplane and auth service agree about a user name and its password because both use package credential: no
// other package imports the hash functions of TURN credentials. Under the workspace this checks every service.
func TestOnlyCredentialImportsHashFunctions(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "work").Output()
	if err != nil {
		t.Fatal(err)
	}
	var judges []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		service := strings.HasPrefix(words[0], "github.com/stunner-gateway/stunner/services/")
		if service && (slices.Contains(words, "crypto/sha1") || slices.Contains(words, "crypto/md5")) {
			judges = append(judges, words[0])
		}
	}
	if !slices.Equal(judges, []string{module + "credential"}) {
		t.Errorf("%q make or check TURN credentials: let credential.Authority do it", judges)
	}
}
