package diagnose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
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

// rightsOfDoctor are the roles of a user who may run a whole diagnosis. The second is for connections to the operator.
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

// A user with rights in one namespace gets the findings of this namespace, and one info with the rights that are
// missing. A user with stunner-viewer in all namespaces gets the same findings as the administrator. A user without
// rights gets an error that names the right. None of them reads a Secret.
func testRights(t *testing.T, o operator) {
	begun := time.Now()
	g := newGateway(t, o, "rights")
	g.serve(t)
	apply(t, "", bedtest.Read(t, "kustomize/base/roles.yaml"))
	apply(t, "", bedtest.Read(t, "kustomize/base/inspection.yaml"))
	apply(t, "", g.own(rightsOf))
	apply(t, "", rightsOfDoctor)
	ann, err := control.User("ann")
	must(t, err)
	cat, err := control.User("cat")
	must(t, err)
	until(t, func(ctx context.Context) error {
		for _, args := range [][]string{{"why", "rights/front-door"}, {"doctor", "-A"}} {
			want, err := o.findings(ctx, control.Admin.Kubeconfig, args...)
			if err != nil {
				return err
			}
			found, err := o.findings(ctx, cat.Kubeconfig, args...)
			if err != nil {
				return err
			}
			if !slices.Equal(found, want) {
				return fmt.Errorf("%v finds %+v, and for the administrator %+v", args, found, want)
			}
		}
		return nil
	})
	bob, err := control.User("bob")
	must(t, err)
	until(t, func(ctx context.Context) error {
		for _, args := range [][]string{{"why", "rights/front-door"}, {"doctor", "-n", "rights"}} {
			found, err := o.findings(ctx, ann.Kubeconfig, args...)
			if err != nil {
				return err
			}
			named := false
			for _, f := range found {
				if f.Severity != "info" {
					return fmt.Errorf("%v: %+v", args, f)
				}
				named = named || strings.Contains(f.Problem, "you may not ") && strings.Contains(f.Remedy, "stunner-viewer")
			}
			if !named {
				return fmt.Errorf("%v: no finding names the missing rights: %+v", args, found)
			}
		}
		return nil
	})
	// Without --operator she needs the right to connect to the operator, and nothing is said about a user.
	until(t, func(ctx context.Context) error {
		found, err := o.found(ctx, "why", "rights/front-door", "--user", "ada", "--kubeconfig", ann.Kubeconfig)
		if err != nil {
			return err
		}
		if len(found) < 2 || found[0].Stage != "person" || !strings.Contains(found[0].Problem, "it is unknown") ||
			found[1].Stage != "operator" || found[1].Severity != "info" || !strings.Contains(found[1].Remedy, "stunner-reach") {
			return fmt.Errorf("without the right to connect: %+v", found)
		}
		return nil
	})
	until(t, func(ctx context.Context) error {
		found, err := o.findings(ctx, bob.Kubeconfig, "why", "rights/front-door")
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].Problem != "cannot be read" || !strings.Contains(found[0].Remedy, "stunner-viewer") {
			return fmt.Errorf("without rights: %+v", found)
		}
		found, err = o.findings(ctx, bob.Kubeconfig, "doctor", "-n", "rights")
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].Severity != "error" ||
			!strings.Contains(found[0].Problem, "you may not list gateways.gateway.networking.k8s.io in namespace rights") ||
			!strings.Contains(found[0].Remedy, "stunner-viewer") {
			return fmt.Errorf("doctor without rights: %+v", found)
		}
		return nil
	})
	all, err := control.Audit(begun)
	must(t, err)
	for _, e := range all {
		if slices.Contains([]string{"ann", "bob", "cat"}, e.User) && (e.Resource == "secrets" || e.Write()) {
			must(t, errors.New(e.User+" "+e.Verb+" "+e.Resource))
		}
	}
}
