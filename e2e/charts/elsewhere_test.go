package charts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// published matches the location of a kustomization in the documentation.
var published = regexp.MustCompile(`'https://github\.com/stunner-gateway/stunner//([^'?]+)\?ref=[^']+'`)

// elsewhere renders the documented overlays for another namespace, "calls", with Roles in the watched namespaces.
func elsewhere(t *testing.T) []object {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(
		harnesstest.Read(t, "docs/install.md"), -1,
	)
	if len(blocks) != 2 {
		t.Fatalf("docs/install.md has %d blocks of YAML", len(blocks))
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	product, err := filepath.Rel(filepath.Join(dir, "calls"), harnesstest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	for folder, text := range map[string]string{
		"calls": published.ReplaceAllString(blocks[0][1], product+"/$1") + fmt.Sprintf(
			"components: [%[1]s/kustomize/components/namespaced, %[1]s/kustomize/components/monitoring]\n", product,
		),
		"meet": fmt.Sprintf("namespace: meet\nresources: [%s/kustomize/components/namespaced/watched]\n", product),
		".":    blocks[1][1],
	} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	top, err := filepath.Rel(harnesstest.Root(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	return kustomize(t, top)
}

// In another namespace all objects refer to that namespace, and Roles exist where they are needed.
func TestKustomize_InAnotherNamespace(t *testing.T) {
	needForeign(t)
	restricted(t, "calls")
	restricted(t, "meet")
	objects := elsewhere(t)
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), home) {
			t.Errorf("%s contains %s:\n%s", name(o), home, text)
		}
	}
	for _, want := range []string{
		"Namespace/calls", "Role/calls/stunner-operator", "Role/meet/stunner-operator-watched",
		"Role/default/stunner-operator-events", "RoleBinding/default/stunner-operator-events",
		"RoleBinding/meet/stunner-inspector",
	} {
		if !slices.ContainsFunc(
			objects,
			func(o object) bool { return strings.Replace(name(o), "Namespace/calls/", "Namespace/", 1) == want },
		) {
			t.Errorf("%s is missing", want)
		}
	}
	if said := apply(t, objects, "--dry-run=server"); strings.Contains(said, "Warning") {
		t.Error(said)
	}
}

// The policies restrict Secret writes of the operator also in another namespace.
func TestKustomize_GuardsSecretsInAnotherNamespace(t *testing.T) {
	restricted(t, "calls")
	restricted(t, "meet")
	apply(t, slices.DeleteFunc(elsewhere(t), func(o object) bool {
		return !strings.HasPrefix(o.GetAPIVersion(), "rbac.") &&
			!strings.HasPrefix(o.GetAPIVersion(), "admissionregistration.")
	}))
	write := func(ctx context.Context, namespace string) error {
		_, err := control.Kubectl(
			ctx, "create", "secret", "generic", "loot", "-n", namespace, "--dry-run=server",
			"--as=system:serviceaccount:calls:stunner-operator",
		)
		return err
	}
	await(t, func(ctx context.Context) error {
		switch err := write(ctx, "meet"); {
		case err == nil:
			return errors.New("the operator makes a Secret of its own in another namespace")
		// either policy may refuse the request
		case !strings.Contains(err.Error(), "denied request: the operator writes"):
			return err
		}
		return nil
	})
	if err := write(t.Context(), "calls"); err != nil {
		t.Errorf("it cannot create the Secret with random credentials: %v", err)
	}
}

// The documented uninstallation with kustomize keeps the namespace, which may contain Gateways, and deletes everything
// else.
func TestKustomize_UninstallKeepsTheNamespace(t *testing.T) {
	command := regexp.MustCompile("(?m)^kubectl (delete --kustomize .*)$").FindStringSubmatch(
		harnesstest.Read(t, "docs/install.md"),
	)
	if command == nil {
		t.Fatal("docs/install.md has no command for uninstallation")
	}
	var args []string
	for arg := range strings.FieldsSeq(published.ReplaceAllString(command[1], harnesstest.Root(t)+"/$1")) {
		args = append(args, strings.Trim(arg, "'"))
	}
	said := kubectl(t, append(args, "--dry-run=client", "--output=name")...)
	if got, want := strings.Count(said, "\n"), len(kustomize(t, "kustomize/overlays/default"))-1; got != want ||
		strings.Contains("\n"+said, "\nnamespace/") {
		t.Errorf("deletes %d objects, want %d and no namespace:\n%s", got, want, said)
	}
}
