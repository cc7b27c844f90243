package translate_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// K-11: the pods of every golden case pass the restricted Pod Security Standard, unless the Dataplane asks for more.
func TestPodsAreRestricted(t *testing.T) {
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	checked := 0
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
				if verdict := policy.AggregateCheckResults(
					checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec),
				); !verdict.Allowed {
					t.Errorf("%s would not be admitted: %s", resource.KeyOf(o), verdict.ForbiddenDetail())
				}
			}
		}
	})
	if checked < len(caseFiles(t))/2 {
		t.Errorf("%d pods were checked, in %d cases", checked, len(caseFiles(t)))
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
