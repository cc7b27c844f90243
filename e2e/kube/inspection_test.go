package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// inspected is a guarded installation with the roles for users of the inspection API, and a pod that answers requests.
type inspected struct {
	guarded
	requests chan string // requests to the pod, as METHOD TARGET
}

func newInspected(t *testing.T) inspected {
	t.Helper()
	s := inspected{guarded: guard(t, "strict"), requests: make(chan string, 100)}
	s.grantUsers()
	token, ca := s.mount()
	source, err := discovery.Open(fmt.Sprintf("https://127.0.0.1:%d", s.discovery), discovery.Options{
		ID: s.name + "/front-door", TokenFile: token, CAFile: ca, Pod: "dataplane", Kind: inspection.Dataplane,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.requests <- r.Method + " " + r.URL.RequestURI()
			_, _ = fmt.Fprintf(w, `{"path":%q}`, r.URL.Path)
		}),
	})
	s.must(err)
	events := source.Watch(t.Context())
	go func() {
		for range events {
		}
	}()
	return s
}

// grantUsers applies the roles for users, and the role of the inspection API.
func (s *installation) grantUsers() {
	s.Helper()
	for _, file := range []string{"roles.yaml", "inspection.yaml"} {
		s.grant(harnesstest.Read(s.T, "kustomize/base/"+file))
	}
}

// serviceAccount returns the user name of an account of the namespace.
func (s *installation) serviceAccount(name string) string {
	return "system:serviceaccount:" + s.name + ":" + name
}

// inspect sends a request to the inspection API and returns the status code and the body.
func (s inspected) inspect(token, method, path string) (int, string) {
	s.Helper()
	code, body, err := s.send(method, "https", token, "/api/v1/"+path)
	s.must(err)
	return code, body
}

// answered waits until the pod answers a request about the Gateway.
func (s inspected) answered(token string) {
	s.Helper()
	s.await(func(context.Context) error {
		code, body := s.inspect(token, http.MethodGet, "gateways/"+s.name+"/front-door/status")
		var list inspection.List
		if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d %s: %v", code, body, err)
		}
		if item := list.Items[0]; item.Pod != "dataplane" || string(item.Body) != `{"path":"/status"}` {
			return fmt.Errorf("item %+v", item)
		}
		return nil
	})
	for len(s.requests) > 0 {
		<-s.requests
	}
}

// K-16: the inspection API answers callers according to their own rights. The role view of a namespace shows its
// Gateways, and stunner-session-manager ends sessions. Other callers get the reason of the refusal. The token of the
// caller is used for reviews only, and no Secret is read for a caller.
func TestInspectionFollowsTheRightsOfTheCaller(t *testing.T) {
	t.Parallel()
	s := newInspected(t)
	other := s.name + "-other"
	s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + other + "}}")
	s.accounts("viewer", "manager", "nobody")
	s.bind("view", s.serviceAccount("viewer"), s.name)
	s.bind("stunner-session-manager", s.serviceAccount("manager"), s.name)
	viewer, manager, nobody := s.token("viewer"), s.token("manager"), s.token("nobody")
	s.answered(viewer) // the rights of the role view are aggregated by a controller
	begun := time.Now()
	ours, theirs := "gateways/"+s.name+"/front-door/", "gateways/"+other+"/front-door/"
	for _, c := range []struct {
		caller, token, method, path string
		code                        int
		want                        string // text in the answer
		request                     string // request to the pod
	}{
		{"a viewer", viewer, "GET", ours + "sessions?user=ada&limit=5", 200, `"pod":"dataplane"`, "GET /sessions?limit=5&user=ada"},
		{"a viewer", viewer, "GET", ours + "refusals", 200, `"path":"/refusals"`, "GET /refusals"},
		{"a viewer", viewer, "GET", ours + "reach?peer=192.0.2.1:80", 200, `"path":"/reach"`, "GET /reach?peer=192.0.2.1%3A80"},
		{"a viewer", viewer, "GET", ours + "grants", 200, `"items":[]`, ""},
		{"a viewer", viewer, "GET", ours + "config", 200, `<redacted>`, ""},
		{"a viewer", viewer, "DELETE", ours + "sessions?user=ada", 403, "bind ClusterRole stunner-session-manager there", ""},
		{"a viewer", viewer, "GET", theirs + "status", 403, `needs get on gateways.gateway.networking.k8s.io in namespace ` + other, ""},
		{"a viewer", viewer, "GET", theirs + "sessions", 403, "needs get on gateways/sessions", ""},
		{"a viewer", viewer, "GET", "operator", 403, "with a ClusterRoleBinding", ""},
		{"a manager", manager, "DELETE", ours + "sessions/4f1d", 200, `"path":"/sessions/4f1d"`, "DELETE /sessions/4f1d"},
		{"a manager", manager, "DELETE", ours + "sessions", 400, "set user or client", ""},
		{"a manager", manager, "DELETE", theirs + "sessions?user=ada", 403, "in namespace " + other, ""},
		{"an account without rights", nobody, "GET", ours + "status", 403,
			`user \"system:serviceaccount:` + s.name + `:nobody\" needs get`, ""},
		{"an account without rights", nobody, "GET", ours + "config", 403, "bind ClusterRole stunner-viewer there", ""},
		{"an account without rights", nobody, "GET", "gateways/" + s.name + "/none/status", 403, "needs get", ""},
		{"a caller without a token", "", "GET", ours + "status", 401, "no token", ""},
		{"an invented token", "made.up.token", "GET", ours + "status", 401, "does not accept the token", ""},
		{"a dataplane", s.podToken("dataplane"), "GET", ours + "status", 401, "grants configs only", ""},
		{"a dataplane", s.podToken("dataplane"), "DELETE", ours + "sessions?user=ada", 401, "grants configs only", ""},
		{"a dataplane of another Gateway", s.podToken("neighbour"), "GET", ours + "sessions", 401, "grants configs only", ""},
		{"the auth service", s.token("auth", "--audience=stunner-discovery"), "GET", ours + "sessions", 401, "grants configs only", ""},
		{"a token for another audience", s.token("viewer", "--audience=vault"), "GET", ours + "status", 401, "does not accept", ""},
		{"a reader of whole configs", s.token("whole", "--audience=stunner-discovery"), "GET", ours + "refusals", 200,
			`"path":"/refusals"`, "GET /refusals"},
		{"a reader of whole configs", s.token("whole", "--audience=stunner-discovery"), "GET", "operator", 200, `"problems":[`, ""},
	} {
		code, body := s.inspect(c.token, c.method, c.path)
		if code != c.code || !strings.Contains(body, c.want) || strings.Contains(body, marker) {
			t.Errorf("%s: %s %s: %d %s, want %d with %s", c.caller, c.method, c.path, code, body, c.code, c.want)
		}
		got := ""
		if len(s.requests) > 0 {
			got = <-s.requests
		}
		if got != c.request {
			t.Errorf("%s: %s %s: the pod got %q, want %q", c.caller, c.method, c.path, got, c.request)
		}
	}
	all, err := control.Audit(begun)
	s.must(err)
	reviews := 0
	for _, e := range all {
		switch {
		case e.User == s.user() && e.Resource == "secrets" && e.Verb == "get" && strings.HasPrefix(e.Namespace, s.name):
			t.Errorf("the operator read Secret %s/%s", e.Namespace, e.Name)
		case e.User == s.user() && strings.HasSuffix(e.Resource, "reviews"):
			reviews++
		}
		for _, account := range []string{"viewer", "manager", "nobody"} {
			if e.User == s.serviceAccount(account) {
				t.Errorf("the token of %s was used for %s %s", account, e.Verb, e.Path)
			}
		}
	}
	if reviews == 0 {
		t.Error("the audit log has no review")
	}
	log, err := os.ReadFile(s.process.Log)
	s.must(err)
	for _, token := range []string{viewer, manager, nobody} {
		if signature := token[strings.LastIndexByte(token, '.')+1:]; strings.Contains(string(log), signature) {
			t.Error("the log of the operator contains the token of a caller")
		}
	}
}

// K-16: the roles for users grant the rights that the commands of stunnerctl need, as listed in
// docs/reference/inspection.md, and no role reads Secrets. The account for users without a token can only read the
// inspection API.
func TestRolesSufficeForCommands(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.grantUsers()
	user := func(role string) string { return role + "-of-" + s.name }
	for _, role := range []string{"view", "edit", "stunner-viewer", "stunner-session-manager"} {
		s.bind(role, user(role), s.name)
	}
	s.apply(fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %q},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: stunner-viewer},
  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]q}]}`, user("everywhere")))
	t.Cleanup(func() { s.must(control.Delete(context.Background(), "", "clusterrolebinding/"+user("everywhere"))) })
	inspector := s.serviceAccount("stunner-inspector")
	s.bind("stunner-inspector", inspector, s.name)

	const gateways, own = ".gateway.networking.k8s.io", ".stunner.l7mp.io"
	status := []string{"get gateways" + gateways}
	calls := []string{"get gateways" + gateways + "/sessions", "get gateways" + gateways + "/refusals"}
	kick, drain := []string{"delete gateways" + gateways + "/sessions"}, []string{"get pods", "create pods/eviction"}
	why := []string{
		"list gateways" + gateways, "list udproutes" + gateways, "list gatewayconfigs" + own, "list udproutes" + own,
		"list staticservices" + own, "list pods", "list events", "list deployments.apps", "list daemonsets.apps",
		"list networkpolicies.networking.k8s.io", "list resourcequotas", "list limitranges", "list services",
		"list endpointslices.discovery.k8s.io",
	}
	doctor := []string{
		"list gatewayclasses" + gateways, "list dataplanes" + own, "list nodes", "get customresourcedefinitions.apiextensions.k8s.io",
		"list validatingadmissionpolicies.admissionregistration.k8s.io",
		"list validatingadmissionpolicybindings.admissionregistration.k8s.io",
	}
	icetest := []string{"get pods", "list pods", "create pods/portforward"}
	for _, resource := range []string{"jobs.batch", "services", "udproutes" + own} {
		icetest = append(icetest, "create "+resource, "list "+resource, "delete "+resource)
	}
	secrets := []string{"get secrets", "list secrets", "watch secrets"}
	for _, c := range []struct {
		user, namespace string
		may, mayNot     [][]string
	}{
		{user("view"), s.name, [][]string{status, calls, why}, [][]string{kick, drain[1:], secrets}},
		{user("edit"), s.name, [][]string{status, calls, why, kick, drain, icetest}, nil},
		{user("stunner-viewer"), s.name, [][]string{status, calls, why}, [][]string{kick, drain[1:], secrets, icetest[2:4], doctor}},
		{user("stunner-session-manager"), s.name, [][]string{status, calls, why, kick, drain}, [][]string{secrets, icetest[2:4]}},
		{user("everywhere"), "", [][]string{status, calls, why, doctor}, [][]string{kick, drain[1:], secrets}},
		{inspector, s.name, [][]string{status, calls}, [][]string{kick, why[2:], drain, secrets, doctor}},
		{user("nobody"), s.name, nil, [][]string{status, calls, kick, why, doctor, drain, icetest, secrets}},
	} {
		check := func(rights []string, want bool) {
			for _, right := range rights {
				verb, resource, _ := strings.Cut(right, " ")
				namespace := c.namespace
				if slices.Contains(doctor, right) { // this right is for a resource without namespaces
					namespace = ""
				}
				s.await(func(ctx context.Context) error { // a controller aggregates the roles asynchronously
					may, err := control.May(ctx, c.user, verb, resource, namespace)
					if err == nil && may != want {
						err = fmt.Errorf("%s may %s: %t, want %t", c.user, right, may, want)
					}
					return err
				})
			}
		}
		check(slices.Concat(c.may...), true)
		check(slices.Concat(c.mayNot...), false)
	}
	for _, name := range []string{"kube-proxy", "cilium-config", "other"} {
		_, err := control.Kubectl(t.Context(), "auth", "can-i", "get", "configmap/"+name, "-n", "kube-system", "--as", user("everywhere"))
		if may := err == nil; may != (name != "other") {
			t.Errorf("ConfigMap %s of kube-system may be read: %t", name, may)
		}
	}
}

// An operator that may not create SubjectAccessReviews answers with the remedy, and serves configs.
func TestInspectionNeedsAccessReviews(t *testing.T) {
	t.Parallel()
	s := newInspected(t)
	s.ends = "authorization.k8s.io"
	s.accounts("viewer")
	s.bind("stunner-viewer", s.serviceAccount("viewer"), s.name)
	s.answered(s.token("viewer"))
	role := s.kubectl("get", "clusterrole", s.account(), "-o", "yaml")
	s.apply(strings.Replace(role, "subjectaccessreviews", "selfsubjectaccessreviews", 1))
	path := "gateways/" + s.name + "/front-door/refusals"
	s.await(func(context.Context) error {
		code, body := s.inspect(s.token("viewer"), http.MethodGet, path)
		if code != http.StatusServiceUnavailable ||
			!strings.Contains(body, "the operator may not create subjectaccessreviews: apply its ClusterRole") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, body, err := s.ask("https", s.podToken("dataplane"), "/"+s.name+"/front-door"); code != http.StatusOK {
		t.Errorf("config: %d %s %v", code, body, err)
	}
	s.apply(role)
	s.answered(s.token("viewer"))
}
