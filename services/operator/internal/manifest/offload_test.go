package manifest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// The pods get the two capabilities and user 0 only if a Dataplane requests in-kernel forwarding and does not set the
// fields itself. A Dataplane whose pods cannot use it is reported.
func TestOffload(t *testing.T) {
	const none, full = "[] <nil>", "[BPF NET_ADMIN] 0"
	for _, test := range []struct{ spec, want, problem string }{
		{``, none, ""},
		{`offloadEngine: None`, none, ""},
		{`offloadEngine: Turbo`, none, ""},
		{`offloadEngine: TC`, full, ""},
		{`offloadEngine: XDP`, full, ""},
		{`offloadEngine: Auto`, full, ""},
		{`offloadEngine: Auto, dataplaneResource: DaemonSet`, full, ""},
		{`offloadEngine: TC, hostNetwork: true`, full, ""},
		{`offloadEngine: Auto, hostNetwork: true`, none, "use TC to accept this, or None"},
		{`offloadEngine: Auto, podTemplatePatch: {spec: {hostNetwork: true}}`, full, "use TC to accept this, or None"},
		{`offloadEngine: TC, securityContext: {fsGroup: 7}`, full, ""},
		{`offloadEngine: TC, securityContext: {runAsUser: 7}`, "[BPF NET_ADMIN] <nil>", "runAsUser to 0"},
		{`offloadEngine: TC, securityContext: {runAsNonRoot: true}`, "[BPF NET_ADMIN] <nil>", "runAsUser to 0"},
		{`offloadEngine: TC, securityContext: {runAsUser: 0}`, "[BPF NET_ADMIN] <nil>", ""},
		{`offloadEngine: TC, containerSecurityContext: {}`, full, ""},
		{`offloadEngine: TC, containerSecurityContext: {runAsUser: 0, capabilities: {add: [BPF]}}`, "[BPF] 0", "has no capability NET_ADMIN"},
		{`offloadEngine: TC, containerSecurityContext: {capabilities: {add: [BPF, NET_ADMIN]}}`, "[BPF NET_ADMIN] <nil>", "runAsUser to 0"},
		{`offloadEngine: TC, containerSecurityContext: {runAsUser: 0, capabilities: {add: [cap_bpf, CAP_NET_ADMIN]}}`, "[cap_bpf CAP_NET_ADMIN] 0", ""},
		{`offloadEngine: TC, containerSecurityContext: {runAsUser: 0, capabilities: {add: [ALL]}}`, "[ALL] 0", ""},
		{`offloadEngine: TC, containerSecurityContext: {runAsUser: 0, privileged: true}`, "[] 0", ""},
		{`offloadEngine: TC, podTemplatePatch: {spec: {hostUsers: false}}`, full, "leave hostUsers out"},
		{`offloadEngine: TC, podTemplatePatch: {spec: {containers: [{name: tap, image: tap}, {name: stunner-daemon, securityContext: {runAsUser: 9}}]}}`, "[BPF NET_ADMIN] 9", "runAsUser to 0"},
		{`offloadEngine: TC, podTemplatePatch: {spec: []}`, full, ""},
		{`podTemplatePatch: {spec: {hostUsers: false}}`, none, ""},
	} {
		d := &stunnerv1.Dataplane{}
		if err := yaml.UnmarshalStrict([]byte("spec: {"+test.spec+"}"), d); err != nil {
			t.Fatal(err)
		}
		problem := ""
		if err := manifest.CheckOffload(d); err != nil {
			problem = err.Error()
		}
		if (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
			t.Errorf("%s: problem %q, want %q", test.spec, problem, test.problem)
		}
		if manifest.CheckPatch(d) != nil {
			continue
		}
		d.Spec.DataplaneResource = ""
		c := deployment(t, d.Spec).Spec.Template.Spec.Containers[0].SecurityContext
		if got := rights(c); got != test.want {
			t.Errorf("%s: the container has %s, want %s", test.spec, got, test.want)
		}
	}
}

// The result of WithoutOffload equals the workload of a Dataplane for which the capabilities are forbidden. It returns
// nil for other objects, and for workloads with other capabilities.
func TestWithoutOffload(t *testing.T) {
	with := deployment(t, stunnerv1.DataplaneSpec{OffloadEngine: stunnerv1.OffloadTC})
	plain := deployment(t, stunnerv1.DataplaneSpec{OffloadEngine: stunnerv1.OffloadNone})
	got := manifest.WithoutOffload(with)
	if got == nil || !reflect.DeepEqual(got.(*appsv1.Deployment).Spec.Template.Spec, plain.Spec.Template.Spec) {
		t.Errorf("%+v, want %+v", got, plain)
	}
	added := with.DeepCopy()
	capabilities := added.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities
	capabilities.Add = append(capabilities.Add, "SYS_ADMIN")
	for _, o := range []resource.Object{plain, added, &corev1.Service{}} {
		if got := manifest.WithoutOffload(o); got != nil {
			t.Errorf("%T: %+v", o, got)
		}
	}
}

func rights(c *corev1.SecurityContext) string {
	added := []corev1.Capability{}
	if c.Capabilities != nil && c.Capabilities.Add != nil {
		added = c.Capabilities.Add
	}
	if c.RunAsUser == nil {
		return fmt.Sprintf("%v <nil>", added)
	}
	return fmt.Sprintf("%v %d", added, *c.RunAsUser)
}
