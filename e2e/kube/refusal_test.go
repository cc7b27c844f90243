package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// refuse installs an admission webhook that rejects every write of these resources in the namespace of the test, with
// code 400 as many webhooks do. The returned function removes it.
func (s *stage) refuse(group, resource, object, words string) (end func()) {
	s.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var asked struct {
			Request struct{ UID string }
		}
		if err := json.Unmarshal(body, &asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":false,"status":{"code":400,"message":%q}}}`,
			asked.Request.UID, words)
	}))
	s.Cleanup(server.Close)
	name := s.name + "-" + resource
	ca := base64.StdEncoding.EncodeToString(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	)
	s.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: ` + name + `}
webhooks:
  - name: says-no.example.net
    clientConfig: {url: "` + server.URL + `", caBundle: ` + ca + `}
    rules: [{apiGroups: ["` + group + `"], apiVersions: ["*"], resources: [` + resource + `], operations: [CREATE, UPDATE]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + s.name + `}}
    sideEffects: None
    admissionReviewVersions: [v1]
`)
	end = func() {
		_, err := control.Kubectl(
			context.WithoutCancel(s.Context()), "delete", "validatingwebhookconfiguration", name, "--ignore-not-found",
		)
		s.must(err)
	}
	s.Cleanup(end)
	s.await(func(ctx context.Context) error { // the API server gets the webhook through a watch
		_, err := control.Kubectl(ctx, "label", object, "-n", s.name, "asked=whether", "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), words) {
			return errors.Join(errors.New("the webhook is not called yet"), err)
		}
		return nil
	})
	return end
}

// If the API server rejects the ScaledObject, the Gateway reports the message and is served unchanged. When the object
// is accepted, the condition is removed.
func TestAutoscaling_RejectionKeepsTheGateway(t *testing.T) {
	t.Parallel()
	s := scaled(t, `{"maxReplicas":4}`)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	end := s.refuse(
		"keda.sh", "scaledobjects", "scaledobjects.keda.sh/front-door",
		"the workload has a HorizontalPodAutoscaler already",
	)
	s.reshape(`{"autoscaling":{"maxReplicas":5},"resources":{"requests":{"cpu":"20m"}}}`)
	s.sees("gateway/front-door", condition("Autoscaled"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Autoscaled")].message`)
	for _, want := range []string{
		"the API server refuses ScaledObject " + s.name + "/front-door",
		"the workload has a HorizontalPodAutoscaler already", "the Gateway is served",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the message is %q, want it to contain %q", said, want)
		}
	}
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].resources.requests.cpu", "20m")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.await(func(context.Context) error {
		if told := s.events(); !strings.Contains(
			told, "Gateway front-door Warning Invalid Autoscaled is False: the API server refuses ScaledObject",
		) {
			return fmt.Errorf("no event reports the rejection:\n%s", told)
		}
		return nil
	})
	if got := s.get("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount"); got != "4" {
		t.Errorf("the ScaledObject has maxReplicaCount %s", got)
	}
	end()
	s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "5")
	s.sees("gateway/front-door", condition("Autoscaled"), "")
	s.sees("gateway/front-door", condition("Programmed"), "True")
}

// A webhook may reject with another code than the API server uses. The rejection is reported too, and the object is
// written when the webhook is removed.
func TestGateway_ReportsWebhookRejections(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	end := s.refuse("", "services", "service/front-door", "no Service without an owner")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("gateway/front-door", condition("Programmed"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`)
	if !strings.Contains(said, "the API server refuses Service "+s.name+"/front-door") ||
		!strings.Contains(said, "no Service without an owner") {
		t.Errorf("the message is %q", said)
	}
	end()
	s.sees("service/front-door", ".metadata.labels.team", "media")
	s.sees("gateway/front-door", condition("Programmed"), "True")
}

// The admission policy of the operator rejects the capabilities of in-kernel forwarding, unless its setting offload
// permits them. The pods then forward media in user space, and condition OffloadUnavailable names the setting.
func TestGateway_IsServedWithoutDeniedCapabilities(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const added = ".spec.template.spec.containers[0].securityContext.capabilities.add"
	const capabilities = `{"spec":{"template":{"spec":{"containers":[{"name":"stunner-daemon",` +
		`"securityContext":{"capabilities":{"add":["BPF","NET_ADMIN"]}}}]}}}}`
	s.sees("deployment/front-door", ".metadata.name", "front-door")
	s.await(func(ctx context.Context) error { // the API server gets the policy through a watch
		_, err := s.asOperator(ctx, "patch deployment front-door", capabilities)
		if err == nil || !strings.Contains(err.Error(), "workloadPolicy.offload") {
			return errors.Join(errors.New("the capabilities are not rejected yet"), err)
		}
		return nil
	})
	s.kubectl("patch", "dataplane", s.name, "--type=merge", "-p", `{"spec":{"offloadEngine":"TC","labels":{"step":"one"}}}`)
	s.sees("deployment/front-door", ".spec.template.metadata.labels.step", "one")
	s.await(func(context.Context) error {
		said := s.get("gateway/front-door", `.status.conditions[?(@.type=="OffloadUnavailable")].message`)
		if !strings.Contains(said, "workloadPolicy.offload") {
			return fmt.Errorf("the message is %q", said)
		}
		return nil
	})
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("deployment/front-door", added, "")
	s.allow("workloads", "offload", "true")
	s.await(func(ctx context.Context) error {
		_, err := s.asOperator(ctx, "patch deployment front-door", capabilities)
		return err
	})
	s.kubectl("patch", "dataplane", s.name, "--type=merge", "-p", `{"spec":{"labels":{"step":"two"}}}`)
	s.sees("deployment/front-door", added, `["BPF","NET_ADMIN"]`)
	s.sees("gateway/front-door", condition("OffloadUnavailable"), "")
}

// Many clusters reject Services with externalIPs. The operator writes such a Service without them, serves the Gateway,
// and reports it in a condition.
func TestGateway_IsServedWithoutDeniedExternalIPs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.allow("services", "externalIPs", "['192.0.2.0/24']")
	s.kubectl(
		"patch", "gatewayconfig", s.name, "-n", s.name, "--type=merge", "-p",
		`{"spec":{"allowedAddresses":["192.0.2.0/24"]}}`,
	)
	name := s.name + "-external-ips"
	s.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: ` + name + `}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + s.name + `}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [services], operations: [CREATE, UPDATE]}]
  validations: [{expression: "!has(object.spec.externalIPs)", message: no external addresses here}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: ` + name + `}
spec: {policyName: ` + name + `, validationActions: [Deny]}
`)
	s.Cleanup(func() {
		for _, kind := range []string{"validatingadmissionpolicybinding", "validatingadmissionpolicy"} {
			_, err := control.Kubectl(context.Background(), "delete", kind, name)
			s.must(err)
		}
	})
	s.await(func(ctx context.Context) error { // the API server gets the policy through a watch
		_, err := control.Kubectl(
			ctx, "patch", "service", "echo", "-n", s.name, "--dry-run=server", "--type=merge", "-p",
			`{"spec":{"externalIPs":["192.0.2.9"]}}`,
		)
		if err == nil || !strings.Contains(err.Error(), "no external addresses here") {
			return errors.Join(errors.New("externalIPs are not rejected yet"), err)
		}
		return nil
	})
	s.kubectl(
		"patch", "gateway", "front-door", "-n", s.name, "--type=merge", "-p",
		`{"spec":{"addresses":[{"value":"192.0.2.7"}]}}`,
	)
	s.sees("service/front-door", ".spec.loadBalancerIP", "192.0.2.7")
	s.sees("service/front-door-tcp", ".spec.loadBalancerIP", "192.0.2.7")
	s.await(func(context.Context) error {
		said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`)
		if !strings.Contains(said, "no external addresses here") ||
			!strings.Contains(said, "stunner.l7mp.io/disable-external-ips") {
			return fmt.Errorf("the message is %q", said)
		}
		return nil
	})
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.kubectl("annotate", "gateway", "front-door", "-n", s.name, "stunner.l7mp.io/disable-external-ips=true")
	s.await(func(context.Context) error {
		if said := s.get(
			"gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`,
		); strings.Contains(said, "external") {
			return fmt.Errorf("the message is still %q", said)
		}
		return nil
	})
}
