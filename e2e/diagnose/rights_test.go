package diagnose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// rightsOf are the roles of a user with rights in one namespace.
const rightsOf = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: view, namespace: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: stunner-viewer, namespace: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stunner-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: ann}]
`

// rightsOfDoctor are the roles of a user who may run a whole diagnosis. The second role is for connections to the
// operator.
const rightsOfDoctor = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cat}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stunner-viewer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: cat}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: cat, namespace: stunner-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: stunner-reach}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: cat}]
`

// A user with rights in one namespace gets the findings of this namespace, and one info with the missing rights. A user
// with stunner-viewer in all namespaces gets the same findings as the administrator. A user without rights gets an
// error that names the right. None of these users reads a Secret.
func testRights(t *testing.T, g *gateway) {
	begun := time.Now()
	apply(t, "", harnesstest.Read(t, "kustomize/base/roles.yaml"))
	apply(t, "", harnesstest.Read(t, "kustomize/base/inspection.yaml"))
	apply(t, "", g.filled(rightsOf))
	apply(t, "", rightsOfDoctor)
	users := map[string]cluster.Access{"admin": control.Admin}
	for _, name := range []string{"ann", "bob", "cat"} {
		user, err := control.User(name)
		must(t, err)
		users[name] = user
	}
	for _, c := range []struct {
		user, args string
		right      func(found, ofAdmin []finding) bool
	}{
		{"cat", "why healthy/front-door --operator URL", slices.Equal[[]finding]},
		{"cat", "doctor -A --operator URL", slices.Equal[[]finding]},
		{"ann", "why healthy/front-door --operator URL", areInfosOnRights},
		{"ann", "doctor -n healthy --operator URL", areInfosOnRights},
		// Without --operator the user needs the right to connect to the operator, and no finding is about a user.
		{"ann", "why healthy/front-door --user ada", func(found, _ []finding) bool {
			return len(found) > 1 &&
				found[0].Stage == "client" && strings.Contains(found[0].Problem, "it is unknown") &&
				found[1].Stage == "operator" && found[1].Severity == "info" &&
				strings.Contains(found[1].Remedy, "stunner-reach")
		}},
		{"bob", "why healthy/front-door --operator URL", func(found, _ []finding) bool {
			return len(found) > 0 && found[0].Problem == "cannot be read" &&
				strings.Contains(found[0].Remedy, "stunner-viewer")
		}},
		{"bob", "doctor -n healthy --operator URL", func(found, _ []finding) bool {
			const problem = "you may not list gateways.gateway.networking.k8s.io in namespace healthy"
			return len(found) > 0 && found[0].Severity == "error" && strings.Contains(found[0].Problem, problem) &&
				strings.Contains(found[0].Remedy, "stunner-viewer")
		}},
	} {
		until(t, func(ctx context.Context) (err error) {
			found := map[string][]finding{}
			for _, name := range []string{c.user, "admin"} {
				args := strings.Fields(strings.ReplaceAll(c.args, "URL", g.url))
				found[name], err = g.found(ctx, append(args, "--kubeconfig", users[name].Kubeconfig)...)
				if err != nil {
					return err
				}
			}
			if !c.right(found[c.user], found["admin"]) {
				err = fmt.Errorf("%s: %s: %+v", c.user, c.args, found)
			}
			return err
		})
	}
	all, err := control.Audit(begun)
	must(t, err)
	for _, e := range all {
		if slices.Contains([]string{"ann", "bob", "cat"}, e.User) && (e.Resource == "secrets" || e.Write()) {
			must(t, errors.New(e.User+" "+e.Verb+" "+e.Resource))
		}
	}
}

// areInfosOnRights reports whether all findings are infos, and one of them names missing rights.
func areInfosOnRights(found, _ []finding) bool {
	named := slices.ContainsFunc(found, func(f finding) bool {
		return strings.Contains(f.Problem, "you may not ") && strings.Contains(f.Remedy, "stunner-viewer")
	})
	return named && !slices.ContainsFunc(found, func(f finding) bool { return f.Severity != "info" })
}
