// Package existing runs the test suite of the existing operator against this operator, on a real API server.
//
// The suite comes from its last Go module, in managed mode. It is run as published, with these changes:
//
//   - testdata/suite.txt replaces the file that starts the existing operator;
//   - certificates that no program can use are replaced by real ones;
//   - a test that fails does not skip the tests after it.
//
// table_test.go has the tests that fail, with the reason. The Gateway API has the version of the suite.
package existing

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// published is the last version of the existing operator that is a Go module. It has the given number of tests for
// managed mode.
const (
	published = "github.com/l7mp/stunner-gateway-operator@v0.18.0"
	specs     = 47
)

func TestSuiteOfTheExistingOperator(t *testing.T) {
	dir := t.TempDir()
	suite := copySuite(t, dir)
	control := startCluster(t, suite)
	discovery := startOperator(t, dir, control)
	t.Setenv("KUBECONFIG", control.Admin.Kubeconfig)
	t.Setenv("DISCOVERY", discovery)
	writeCertificates(t, dir)
	counts := map[string]int{}
	for _, result := range run(t, dir, suite) {
		name := result.name()
		reason, announced := deviations[name]
		counts[result.State]++
		switch passed := result.State == "passed"; {
		case passed && announced:
			t.Errorf("%s passes now: remove it from the table (%s)", name, reason)
		case !passed && !announced:
			t.Errorf("%s: %s: %s", name, result.State, result.Failure.Message)
		}
	}
	t.Logf("%v, announced %d", counts, len(deviations))
	if counts["passed"]+counts["failed"] != specs {
		t.Errorf("want %d tests that pass or fail", specs)
	}
}

// copySuite copies the module into dir, with the changes that the package comment lists.
func copySuite(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", published)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	harnesstest.NoError(t, err)
	var module struct{ Dir string }
	harnesstest.NoError(t, json.Unmarshal(out, &module))
	suite := filepath.Join(dir, "suite")
	harnesstest.NoError(t, os.CopyFS(suite, os.DirFS(module.Dir)))
	harnesstest.NoError(t, filepath.WalkDir(suite, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o700)
	}))
	harnesstest.NoError(t, os.Remove(filepath.Join(suite, "test/legacy_mode_test.go")))
	replace(t, filepath.Join(suite, "test/managed_mode_test.go"),
		`Ordered, Label("managed")`, `Ordered, ContinueOnFailure, Label("managed")`, `[]byte("newcert")`, "newCert")
	replacement, err := os.ReadFile("testdata/suite.txt")
	harnesstest.NoError(t, err)
	harnesstest.NoError(t, os.WriteFile(filepath.Join(suite, "test/integration_suite_test.go"), replacement, 0o600))
	return suite
}

func replace(t *testing.T, file string, pairs ...string) {
	t.Helper()
	data, err := os.ReadFile(file)
	harnesstest.NoError(t, err)
	text := string(data)
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%s lacks %s", file, pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	harnesstest.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func startCluster(t *testing.T, suite string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Bare: true, Still: true})
	harnesstest.NoError(t, err)
	t.Cleanup(func() { harnesstest.NoError(t, c.Stop()) })
	for _, args := range [][]string{
		{"-f", filepath.Join(suite, "config/gateway-api-v1.0.0/crd")},
		{"-k", filepath.Join(harnesstest.Root(t), "kustomize/base/crds")},
	} {
		_, err := c.Kubectl(t.Context(), append([]string{"create"}, args...)...)
		harnesstest.NoError(t, err)
	}
	_, err = c.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=1m", "crd", "--all")
	harnesstest.NoError(t, err)
	_, err = c.Kubectl(t.Context(), "create", "namespace", "stunner-system")
	harnesstest.NoError(t, err)
	return c
}

// startOperator returns the address of config discovery.
func startOperator(t *testing.T, dir string, c *cluster.Cluster) string {
	t.Helper()
	health, discovery := harnesstest.Address(t), harnesstest.Address(t)
	bin := harnesstest.Build(t, harness.Operator)
	harnesstest.Start(t,
		harness.Command{Name: "operator", Path: filepath.Join(bin, "operator"), Logs: dir, Args: []string{
			"--provider=kubernetes", "--kubeconfig", c.Admin.Kubeconfig, "--namespace=stunner-system", "--log=all:INFO",
			"--discovery-auth=off", "--discovery-address", discovery, "--health-address", health, "--scaler-address=",
		}}, harness.Answers("http://"+health+"/ready", http.StatusOK))
	return discovery
}

// writeCertificates writes a key and two certificates for it, and sets the variables that name their files.
func writeCertificates(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harnesstest.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	harnesstest.NoError(t, err)
	write := func(variable, kind string, der []byte) {
		file := filepath.Join(dir, variable)
		harnesstest.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		t.Setenv(variable, file)
	}
	write("KEY", "PRIVATE KEY", private)
	for i, variable := range []string{"CERTIFICATE", "SECOND_CERTIFICATE"} {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), Subject: pkix.Name{CommonName: "turn.example.org"},
			DNSNames: []string{"turn.example.org"}, NotAfter: time.Now().Add(time.Hour),
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		harnesstest.NoError(t, err)
		write(variable, "CERTIFICATE", der)
	}
}

// result is a test of the suite, in the report of its runner.
type result struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	Failure                 struct{ Message string }
}

// name returns the group of the test and its sentence.
func (r result) name() string {
	return strings.Join(append(r.ContainerHierarchyTexts[1:], r.LeafNodeText), ": ")
}

func run(t *testing.T, dir, suite string) (all []result) {
	t.Helper()
	report := filepath.Join(dir, "report.json")
	cmd := exec.CommandContext(t.Context(),
		"go", "test", "./test", "-count=1", "-timeout=20m", "-ginkgo.json-report="+report)
	cmd.Dir, cmd.Env = suite, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	failed := cmd.Run() // also if a test of the suite fails
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v: %v\n%s", failed, err, log.String())
	}
	if testing.Verbose() {
		fmt.Println(log.String())
	}
	var reports []struct{ SpecReports []result }
	harnesstest.NoError(t, json.Unmarshal(data, &reports))
	for _, r := range reports {
		for _, s := range r.SpecReports {
			if s.LeafNodeType == "It" {
				all = append(all, s)
			}
		}
	}
	return all
}
