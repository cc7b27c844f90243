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
			Why:       "dataplane and auth service must come to the same verdict; that is only testable when it depends on nothing but its arguments",
		},
		{
			Package:   module + "config",
			Forbidden: append([]string{"os", "io/fs", "net/http", "log", module + "discovery", module + "telemetry", module + "v1"}, kubernetes...),
			Calls:     clock,
			Why:       "a config means the same in every process: it is a value, and what reads and sends it is elsewhere",
		},
		{
			Package:   module + "discovery",
			Forbidden: append([]string{module + "telemetry", module + "v1"}, kubernetes...),
			Why:       "the dataplane and the auth service run without Kubernetes, and stay small",
		},
		{
			Package:   module + "telemetry",
			Forbidden: append([]string{module + "config", module + "discovery", module + "v1"}, kubernetes...),
			Why:       "how a process is observed does not depend on what it does",
		},
		{
			Package:   module + "v1",
			Forbidden: []string{module + "config", module + "discovery", "k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/pkg/client/..."},
			Why:       "the kinds are imported by everybody who talks to the API server; they bring no client and no meaning",
		},
	})
}

// F-06: dataplane and auth service come to the same verdict on a user name and its password because they ask the same function: nobody else
// has the hash functions that a TURN credential is made and checked with. Under the workspace this looks at every service.
func TestOneJudgeOfCredentials(t *testing.T) {
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
