package largest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// oneObject are resources of which the operator reads one object with a fixed name.
var oneObject = map[string]bool{"coordination.k8s.io leases": true}

// TestRowsHaveAllKinds: each kind that the operator may read has a row.
func TestRowsHaveAllKinds(t *testing.T) {
	have := map[string]bool{}
	d := newDecoder(t)
	for _, r := range rows {
		base, err := d.base(r, name)
		if err != nil {
			t.Fatal(err)
		}
		kind := kindOf(base)
		path := pathOf(kind, attacker)
		have[kind.Group+" "+path[strings.LastIndex(path, "/")+1:]] = true
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "kustomize/base/rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		role := rbacv1.ClusterRole{}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if role.Kind != "ClusterRole" || !slices.Contains(rule.Verbs, "get") {
				continue
			}
			for _, resource := range rule.Resources {
				of := rule.APIGroups[0] + " " + resource
				if read++; !have[of] && !oneObject[of] {
					t.Errorf("the operator may read %s, and no row has this kind", of)
				}
			}
		}
	}
	if read < 20 {
		t.Fatalf("TEST NOT VALID: %d resources in kustomize/base/rbac.yaml", read)
	}
}
