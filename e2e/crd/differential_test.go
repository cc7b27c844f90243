package crd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

var (
	specs = flag.Int("specs", 600, "number of generated objects that TestFileProviderAgreesWithAPIServer compares")
	seed  = flag.Uint64("seed", 1, "seed of the generated objects")
)

// specimen is an object to be judged, as JSON.
type specimen struct {
	crd  *apiextensions.CustomResourceDefinition
	path string // of its collection in the API
	body []byte
}

// verdict is the result of the file provider or the API server for a specimen.
type verdict struct {
	refused bool
	fields  []string
	words   string
}

// K-14: the same rules apply to a folder of YAML and to objects in a cluster. Every row of the admission table, and
// generated objects, are checked by the operator and by an API server that has the CRDs which the operator embeds.
func TestFileProviderAgreesWithAPIServer(t *testing.T) {
	crds := readCRDs(t, filepath.Join(embedded, "*.yaml"))
	corpus := rowSpecimens(t, crds)
	rows := len(corpus)
	corpus = append(corpus, generated(t, crds, *specs, *seed)...)

	folder := judgedByOperator(t, corpus)
	server := judgedByAPIServer(t, corpus)

	accepted, failed := 0, 0
	for i := range corpus {
		if !server[i].refused {
			accepted++
		}
		if difference := differ(folder[i], server[i]); difference != "" {
			if failed++; failed <= 20 {
				t.Errorf(
					"%s:\n%s\nAPI server: %s\noperator: %s", difference, corpus[i].body, server[i].words,
					folder[i].words,
				)
			}
		}
	}
	t.Logf("%d rows and %d generated objects: %d accepted, %d refused; %d verdicts differ",
		rows, len(corpus)-rows, accepted, len(corpus)-accepted, failed)
	if 4*accepted < len(corpus) || 4*(len(corpus)-accepted) < len(corpus) {
		t.Error("too few objects of one verdict: the comparison proves little")
	}
}

// index matches the part of a path after the path of a list.
var index = regexp.MustCompile(`^\[\d+\]$`)

// maxFindings is the maximum number of problems of a document that the operator reports.
const maxFindings = 64

// differ compares the verdicts on one object. If both refuse it, the operator must name every field that the API server
// names. It may name an item where the API server names the list.
func differ(operator, server verdict) string {
	if operator.refused != server.refused {
		return "verdicts differ"
	}
	if len(operator.fields) >= maxFindings {
		return ""
	}
	for _, field := range server.fields {
		named := func(f string) bool {
			rest, below := strings.CutPrefix(f, field)
			return below && (rest == "" || index.MatchString(rest))
		}
		if !slices.ContainsFunc(operator.fields, named) {
			return "the operator does not name " + field
		}
	}
	return ""
}

// newSpecimen gives an object a name, and a namespace if its kind is namespaced.
func newSpecimen(crd *apiextensions.CustomResourceDefinition, version string, n int, object map[string]any) specimen {
	metadata := map[string]any{"name": fmt.Sprintf("n%05d", n)}
	path := "/apis/" + crd.Spec.Group + "/" + version
	if crd.Spec.Scope == apiextensions.NamespaceScoped {
		metadata["namespace"] = metav1.NamespaceDefault
		path += "/namespaces/" + metav1.NamespaceDefault
	}
	object["apiVersion"], object["kind"], object["metadata"] = crd.Spec.Group+"/"+version, crd.Spec.Names.Kind, metadata
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // all values are JSON values
	}
	return specimen{crd: crd, path: path + "/" + crd.Spec.Names.Plural, body: body}
}

// rowSpecimens returns the rows of the admission table.
func rowSpecimens(t *testing.T, crds []*apiextensions.CustomResourceDefinition) (all []specimen) {
	t.Helper()
	for i, row := range admissions {
		crd := crdOf(crds, row.kind)
		if crd == nil {
			t.Fatalf("no CRD has kind %s", row.kind)
		}
		all = append(all, newSpecimen(crd, "v1", i, parse(t, row.kind, row.spec)))
	}
	return all
}

func crdOf(crds []*apiextensions.CustomResourceDefinition, kind string) *apiextensions.CustomResourceDefinition {
	for _, crd := range crds {
		if rowKind(crd) == kind {
			return crd
		}
	}
	return nil
}

// judgedByOperator lets the operator read a folder with one file for each specimen.
func judgedByOperator(t *testing.T, corpus []specimen) []verdict {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs, input, output := t.TempDir(), t.TempDir(), t.TempDir()
	if err := harness.Build(t.Context(), root, programs, harness.Operator); err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return fmt.Sprintf("%05d.yaml", i) }
	for i, s := range corpus {
		if err := os.WriteFile(filepath.Join(input, name(i)), s.body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	operator := exec.CommandContext(t.Context(), filepath.Join(programs, "operator"),
		"--input", input, "--output", output, "--watch=false", "--log=all:ERROR")
	out, err := operator.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("operator: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(output, "problems.yaml"))
	status, statusErr := os.ReadFile(filepath.Join(output, "status.txt"))
	if err := errors.Join(err, statusErr); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var problems []struct{ File, Severity, Field, Message string }
	if err := yaml.Unmarshal(data, &problems); err != nil {
		t.Fatal(err)
	}
	t.Logf("the operator read %d files in %s", len(corpus), time.Since(begun).Round(time.Millisecond))
	verdicts := make([]verdict, len(corpus))
	_, inForce, found := strings.Cut(string(status), "OBJECTS IN FORCE")
	if !found {
		t.Fatalf("status.txt has no objects in force:\n%s", status)
	}
	for i := range verdicts { // a valid object may conflict with other objects; an API server does not check that
		verdicts[i].refused = !strings.Contains(inForce, "  "+name(i)+":")
	}
	for _, p := range problems {
		var n int
		if _, err := fmt.Sscanf(p.File, "%d.yaml", &n); err != nil {
			t.Fatalf("problem in file %q", p.File)
		}
		if p.Severity == "Error" {
			v := &verdicts[n]
			v.fields, v.words = append(v.fields, p.Field), v.words+p.Field+": "+p.Message+"; "
		}
	}
	return verdicts
}

// judgedByAPIServer asks an API server to create the specimens, without storing them.
func judgedByAPIServer(t *testing.T, corpus []specimen) []verdict {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Bare: true, Still: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, args := range [][]string{
		{"create", "-f", embedded},
		{"wait", "--for=condition=Established", "--timeout=1m", "crd", "--all"},
	} {
		if _, err := c.Kubectl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(c.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	verdicts := make([]verdict, len(corpus))
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i, s := range corpus {
		group.Go(func() (err error) {
			verdicts[i], err = dryRun(ctx, client, c.Admin.Config.Host+s.path, s.body)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// strictError matches the fields in the error of strict field validation. The API server then reports no other error.
var strictError = regexp.MustCompile(`(?:unknown|duplicate) field "([^"]+)"`)

// dryRun requests the creation of an object as kubectl does, with strict field validation.
func dryRun(ctx context.Context, client *http.Client, url string, body []byte) (v verdict, err error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"?dryRun=All&fieldValidation=Strict",
			bytes.NewReader(body))
		if err != nil {
			return v, err
		}
		req.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(req)
		if err != nil {
			return v, err
		}
		data, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			return v, err
		}
		var status metav1.Status
		switch answer.StatusCode {
		case http.StatusCreated:
			return v, nil
		case http.StatusNotFound, http.StatusTooManyRequests: // a kind is served shortly after its CRD is established
			time.Sleep(100 * time.Millisecond)
			continue
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			if err := json.Unmarshal(data, &status); err != nil {
				return v, err
			}
		default:
			return v, fmt.Errorf("create %s: %s: %s", body, answer.Status, data)
		}
		v.refused, v.words = true, status.Message
		for _, m := range strictError.FindAllStringSubmatch(status.Message, -1) {
			v.fields = append(v.fields, m[1])
		}
		if status.Details != nil {
			for _, cause := range status.Details.Causes {
				if cause.Field != "" && cause.Field != "<nil>" {
					v.fields = append(v.fields, cause.Field)
				}
			}
		}
		return v, nil
	}
}
