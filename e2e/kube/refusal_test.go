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

// refuse has a webhook of somebody else refuse every write of these resources in the namespace of the test, as webhooks do that say no more than no:
// with code 400. It returns what makes an end of that.
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
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
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
		_, err := control.Kubectl(context.WithoutCancel(s.Context()), "delete", "validatingwebhookconfiguration", name, "--ignore-not-found")
		s.must(err)
	}
	s.Cleanup(end)
	s.await(func(ctx context.Context) error { // the API server learns of it by a watch
		_, err := control.Kubectl(ctx, "label", object, "-n", s.name, "asked=whether", "--dry-run=server")
		if err == nil || !strings.Contains(err.Error(), words) {
			return errors.Join(errors.New("the webhook is not asked yet"), err)
		}
		return nil
	})
	return end
}

// What only scales the pods may be refused: the Gateway says so in the words of the API server, and is served as if nothing had happened. When it is taken
// in the end, nothing more is said.
func TestAutoscaling_ThatIsRefusedTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := scaled(t, `{"maxReplicas":4}`)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	end := s.refuse("keda.sh", "scaledobjects", "scaledobjects.keda.sh/front-door", "the workload has a HorizontalPodAutoscaler already")
	s.reshape(`{"autoscaling":{"maxReplicas":5},"resources":{"requests":{"cpu":"20m"}}}`)
	s.sees("gateway/front-door", condition("Autoscaled"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Autoscaled")].message`)
	for _, want := range []string{"the API server refuses ScaledObject " + s.name + "/front-door", "the workload has a HorizontalPodAutoscaler already", "the Gateway is served"} {
		if !strings.Contains(said, want) {
			t.Errorf("the message is %q, which does not say %q", said, want)
		}
	}
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].resources.requests.cpu", "20m")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.await(func(context.Context) error {
		if told := s.events(); !strings.Contains(told, "Gateway front-door Warning Invalid Autoscaled is False: the API server refuses ScaledObject") {
			return fmt.Errorf("events do not tell of it:\n%s", told)
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

// A webhook may say no with another code than the API server has for that: it is told all the same, and healed when the webhook goes.
func TestGateway_SaysWhatAWebhookRefuses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	end := s.refuse("", "services", "service/front-door", "no Service without an owner")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("gateway/front-door", condition("Programmed"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`)
	if !strings.Contains(said, "the API server refuses Service "+s.name+"/front-door") || !strings.Contains(said, "no Service without an owner") {
		t.Errorf("the message is %q", said)
	}
	end()
	s.sees("service/front-door", ".metadata.labels.team", "media")
	s.sees("gateway/front-door", condition("Programmed"), "True")
}

// Many clusters let no Service have external addresses. One that a Gateway wishes for is made without them, and the Gateway is served and says so.
func TestGateway_DoesWithoutExternalIPsThatAreDenied(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.allow("services", "externalIPs", "['192.0.2.0/24']")
	s.kubectl("patch", "gatewayconfig", s.name, "-n", s.name, "--type=merge", "-p", `{"spec":{"allowedAddresses":["192.0.2.0/24"]}}`)
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
	s.await(func(ctx context.Context) error { // the API server learns of it by a watch
		_, err := control.Kubectl(ctx, "patch", "service", "echo", "-n", s.name, "--dry-run=server", "--type=merge", "-p", `{"spec":{"externalIPs":["192.0.2.9"]}}`)
		if err == nil || !strings.Contains(err.Error(), "no external addresses here") {
			return errors.Join(errors.New("they are not denied yet"), err)
		}
		return nil
	})
	s.kubectl("patch", "gateway", "front-door", "-n", s.name, "--type=merge", "-p", `{"spec":{"addresses":[{"value":"192.0.2.7"}]}}`)
	s.sees("service/front-door", ".spec.loadBalancerIP", "192.0.2.7")
	s.sees("service/front-door-tcp", ".spec.loadBalancerIP", "192.0.2.7")
	s.await(func(context.Context) error {
		said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`)
		if !strings.Contains(said, "no external addresses here") || !strings.Contains(said, "stunner.l7mp.io/disable-external-ips") {
			return fmt.Errorf("people are told %q", said)
		}
		return nil
	})
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.kubectl("annotate", "gateway", "front-door", "-n", s.name, "stunner.l7mp.io/disable-external-ips=true")
	s.await(func(context.Context) error {
		if said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`); strings.Contains(said, "external") {
			return fmt.Errorf("people are still told %q", said)
		}
		return nil
	})
}
