package translate_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// K-11: the pods of every golden case pass the restricted Pod Security Standard, unless the Dataplane requires more.
// In-kernel forwarding adds two capabilities and user 0, and nothing else.
func TestPodsAreRestricted(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	checked, offloads := 0, 0
	forEachCase(t, func(t *testing.T, c *testCase) {
		for _, name := range c.view().Dataplanes() {
			if !silent(c.view().Dataplane(name).Spec) {
				return
			}
		}
		c.options.DiscoverySecured = true
		for _, r := range translateAll(c.view(), c.options).Gateways {
			for _, o := range r.Objects {
				pod := podOf(o)
				if pod == nil {
					continue
				}
				checked++
				if c := pod.Spec.Containers[0].SecurityContext; slices.Equal(
					c.Capabilities.Add, []corev1.Capability{"BPF", "NET_ADMIN"},
				) {
					offloads++
					c.Capabilities.Add, c.RunAsUser, c.RunAsNonRoot = nil, nil, nil
				}
				if verdict := policy.AggregateCheckResults(
					checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec),
				); !verdict.Allowed {
					t.Errorf("%s would not be admitted: %s", resource.KeyOf(o), verdict.ForbiddenDetail())
				}
			}
		}
	})
	if checked < len(caseFiles(t))/2 || offloads == 0 {
		t.Errorf("%d pods were checked in %d cases, %d with in-kernel forwarding", checked, len(caseFiles(t)), offloads)
	}
}

// silent reports whether a Dataplane leaves the security context of its pods to the operator.
func silent(s stunnerv1.DataplaneSpec) bool {
	return s.SecurityContext == nil && s.ContainerSecurityContext == nil && !s.HostNetwork && s.PodTemplatePatch == nil
}

// podOf returns the pod template of a workload, nil for another object.
func podOf(o resource.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	}
	return nil
}
