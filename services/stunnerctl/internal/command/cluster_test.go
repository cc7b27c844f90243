package command

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// clusterKinds have no namespace.
var clusterKinds = []string{"Node", "Namespace", "GatewayClass", "Dataplane", "CustomResourceDefinition"}

// fakeCluster serves objects as the API server does, and returns the flags that select it. It answers the log of every
// pod with log. Accounts may write GatewayClasses, except those of the namespace tenant. Without objects it forbids
// everything, as for a user without rights.
func fakeCluster(t *testing.T, log string, documents ...string) []string {
	t.Helper()
	var objects []unstructured.Unstructured
	resources := map[schema.GroupVersion][]metav1.APIResource{}
	for _, text := range documents {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
		gv, plural := o.GroupVersionKind().GroupVersion(), pluralOf(o)
		if !slices.ContainsFunc(resources[gv], func(r metav1.APIResource) bool { return r.Name == plural }) {
			resources[gv] = append(resources[gv], metav1.APIResource{
				Name: plural, Kind: o.GetKind(), Verbs: []string{"get", "list"},
				Namespaced: !slices.Contains(clusterKinds, o.GetKind()),
			})
		}
	}
	answers := map[string]any{"/api": metav1.APIVersions{Versions: []string{"v1"}}}
	groups := metav1.APIGroupList{}
	for gv, list := range resources {
		root := "/apis/" + gv.String()
		if gv.Group == "" {
			root = "/api/v1"
		} else {
			version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
			groups.Groups = append(groups.Groups, metav1.APIGroup{
				Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
			})
		}
		answers[root] = metav1.APIResourceList{GroupVersion: gv.String(), APIResources: list}
		for _, o := range objects {
			if o.GroupVersionKind().GroupVersion() != gv {
				continue
			}
			at := path.Join(root, pluralOf(o))
			lists := []string{at}
			if namespace := o.GetNamespace(); namespace != "" {
				at = path.Join(root, "namespaces", namespace, pluralOf(o))
				lists = append(lists, at)
			}
			answers[path.Join(at, o.GetName())] = o.Object
			for _, l := range lists {
				all, _ := answers[l].(map[string]any)
				if all == nil {
					all = map[string]any{
						"kind": o.GetKind() + "List", "apiVersion": gv.String(), "metadata": map[string]any{}, "items": []any{},
					}
				}
				all["items"] = append(all["items"].([]any), o.Object)
				answers[l] = all
			}
		}
	}
	answers["/apis"] = groups
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.Path]
		switch {
		case len(documents) == 0:
			forbid(w, r.URL.Path)
		case path.Base(r.URL.Path) == "subjectaccessreviews":
			review := &authorizationv1.SubjectAccessReview{}
			body, _ := io.ReadAll(r.Body)
			if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, review); err != nil {
				t.Error(err)
			}
			review.Status.Allowed = !strings.HasPrefix(review.Spec.User, "system:serviceaccount:tenant:")
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
		case path.Base(r.URL.Path) == "log":
			fmt.Fprint(w, log)
		case !found:
			http.NotFound(w, r)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(labelled(t, answer, r.URL.Query().Get("labelSelector")))
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: %q}}],
users: [{name: a, user: {token: x}}], contexts: [{name: a, context: {cluster: a, user: a}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--kubeconfig", file, "--cache-dir", t.TempDir()}
}

// Without a Gateway of an operator with a usual name, an error names the flag for an operator with another name, as of a
// second release. With the flag, its Gateways are found.
func TestGateways_OfAnotherControllerName(t *testing.T) {
	flags := append(fakeCluster(t, "",
		`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: calls}, spec: {controllerName: example.org/calls}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: front, namespace: calls}, spec: {gatewayClassName: calls}}`,
	), "status", "-n", "calls")
	if _, errs, code := execute(t, "", flags...); code != exitFailed || !strings.Contains(errs, "no Gateway of STUNner in calls") ||
		!strings.Contains(errs, "--controller-name") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	_, errs, _ := execute(t, "", append(flags, "--controller-name", "example.org/calls")...) // there is no operator to ask
	if strings.Contains(errs, "no Gateway of STUNner") {
		t.Error(errs)
	}
}

// labelled returns a list with the objects that a label selector selects, and every other answer unchanged.
func labelled(t *testing.T, answer any, text string) any {
	list, ok := answer.(map[string]any)
	if !ok || text == "" {
		return answer
	}
	selector, err := labels.Parse(text)
	if err != nil {
		t.Error(err)
		return answer
	}
	list = maps.Clone(list)
	list["items"] = slices.DeleteFunc(slices.Clone(list["items"].([]any)), func(o any) bool {
		return !selector.Matches(labels.Set((&unstructured.Unstructured{Object: o.(map[string]any)}).GetLabels()))
	})
	return list
}

func pluralOf(o unstructured.Unstructured) string {
	if o.GetKind() == "Gateway" {
		return "gateways" // a rule for plurals would return gatewaies
	}
	plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return plural.Resource
}

func forbid(w http.ResponseWriter, what string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: what + " is forbidden",
	})
}

// A user without rights learns which right is missing, and how to get it.
func TestDoctorWithoutRights(t *testing.T) {
	for line, want := range map[string]string{
		"doctor -n media": "you may not list gateways.gateway.networking.k8s.io in namespace media",
		"doctor -A":       "you may not list gateways.gateway.networking.k8s.io in all namespaces",
	} {
		out, errs, code := execute(t, "", append(fakeCluster(t, ""), strings.Fields(line)...)...)
		text := strings.Join(strings.Fields(out), " ")
		if code != exitFailed || errs != "" || !strings.Contains(text, want) ||
			!strings.Contains(text, "bind ClusterRole stunner-viewer") ||
			!strings.Contains(text, "Role stunner-reach of namespace stunner-system") {
			t.Errorf("%s: exit code %d\n%s%s", line, code, out, errs)
		}
	}
}

// doctor checks the Gateways of the controller in --controller-name, and lists the Gateways that it has left out.
func TestControllerName(t *testing.T) {
	flags := fakeCluster(t, "",
		`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: turn}, spec: {controllerName: example.org/x}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: front, namespace: media},
		  spec: {gatewayClassName: turn}}`)
	checked, skipped := `"subject": "Gateway media/front"`, "were not checked: media/front (example.org/x)"
	for line, want := range map[string]bool{"doctor -A": false, "doctor -A --controller-name example.org/x": true} {
		out, errs, _ := execute(t, "", append(append(flags, strings.Fields(line)...), "-o", "json")...)
		if strings.Contains(out, checked) != want || strings.Contains(out, skipped) == want {
			t.Errorf("%s\n%s%s", line, out, errs)
		}
	}
}
