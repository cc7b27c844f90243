package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// The rights of the operator are what somebody has written down and looked at, in its own namespace and elsewhere (K-05).
func TestRights_AreThoseWrittenDown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	got := "in its own namespace\n" + s.rights(s.name) + "\nelsewhere\n" + s.rights("default")
	want, err := os.ReadFile("testdata/can-i.txt")
	s.must(err)
	if got != string(want) {
		t.Errorf("the operator may do something else than testdata/can-i.txt says:\n%s", got)
	}
	for _, never := range []string{"*", "escalate", "bind", "impersonate"} {
		for line := range strings.Lines(got) {
			if slices.Contains(strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" []", r) }), never) {
				t.Errorf("%s: %s", never, line)
			}
		}
	}
}

// rights are the resources that the operator may touch in a namespace, with the names that they are limited to, and the verbs. What every account may
// ask about itself is left out.
func (s *stage) rights(namespace string) string {
	s.Helper()
	var lines []string
	for line := range strings.Lines(s.kubectl("auth", "can-i", "--list", "--no-headers", "--as", s.user(), "-n", namespace)) {
		// Of the columns resources, non-resource URLs, resource names and verbs, the second is empty where the first is not.
		if fields := strings.Fields(line); !strings.HasPrefix(fields[0], "[") && !strings.HasPrefix(fields[0], "self") {
			lines = append(lines, strings.ReplaceAll(strings.Join(fields, " "), s.account(), "stunner-operator")+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Who may edit a namespace may edit the kinds of the product in it, and no Dataplane; who may view it only views (K-10).
func TestRights_OfTenants(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	root, err := bed.Root()
	s.must(err)
	s.kubectl("apply", "-f", filepath.Join(root, "kustomize/base/roles.yaml"))
	for _, role := range []string{"view", "edit", "admin"} {
		s.kubectl("create", "rolebinding", role, "-n", s.name, "--clusterrole", role, "--user", role+"-"+s.name)
	}
	for _, c := range []struct {
		role, verb, resource string
		may                  bool
	}{
		{"view", "get", "gatewayconfigs.stunner.l7mp.io", true},
		{"view", "patch", "gatewayconfigs.stunner.l7mp.io", false},
		{"edit", "create", "udproutes.stunner.l7mp.io", true},
		{"edit", "delete", "staticservices.stunner.l7mp.io", true},
		{"edit", "patch", "gatewayconfigs.stunner.l7mp.io/status", false},
		{"edit", "get", "dataplanes.stunner.l7mp.io", false},
		{"admin", "patch", "gatewayconfigs.stunner.l7mp.io", true},
		{"admin", "create", "dataplanes.stunner.l7mp.io", false},
	} {
		s.await(func(ctx context.Context) error { // a controller aggregates roles
			_, err := control.Kubectl(ctx, "auth", "can-i", c.verb, c.resource, "-n", s.name, "--as", c.role+"-"+s.name)
			if may := err == nil; may != c.may {
				return fmt.Errorf("%s may %s %s: %t, want %t", c.role, c.verb, c.resource, may, c.may)
			}
			return nil
		})
	}
}
