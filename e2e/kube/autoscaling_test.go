package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// keda lists the KEDA kinds of the objects that the operator creates.
var keda = []string{"scaledobjects.keda.sh", "triggerauthentications.keda.sh"}

// The operator works while KEDA is missing, and when its CRDs are installed or removed. The status says what to
// install, and the operator does not request kinds that do not exist. The test does not run in parallel with others,
// because the CRDs exist for all of them or for none.
func TestAutoscaling_WaitsForKEDA(t *testing.T) {
	s := newStage(t)
	s.ends = "keda.sh"
	s.withoutKEDA()
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.stop()
	begun := time.Now()
	s.start()
	s.reshape(`{"autoscaling":{"maxReplicas":4}}`)
	waits := `.status.conditions[?(@.type=="Autoscaled")].reason`
	s.sees("dataplane/"+s.name, waits, "KEDAMissing")
	s.sees("dataplane/"+s.name, condition("Accepted"), "True")
	s.await(func(context.Context) error {
		if said := s.get(
			"gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`,
		); !strings.Contains(said, "waits for KEDA") {
			return fmt.Errorf("the message of the Gateway is %q", said)
		}
		return nil
	})
	s.sees("gateway/front-door", condition("Accepted"), "True")
	all, err := control.Audit(begun)
	s.must(err)
	for _, e := range all {
		if e.User == s.user() && e.Group == "keda.sh" && e.Resource != "" {
			t.Errorf("%s %s: the kind does not exist", e.Verb, e.Resource)
		}
	}
	for range 2 {
		s.must(control.InstallKEDA(t.Context()))
		s.sees("dataplane/"+s.name, waits, "KEDAFound")
		s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "4")
		s.sees("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`, "")
		s.withoutKEDA()
		s.sees("dataplane/"+s.name, waits, "KEDAMissing")
		s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	}
}

// withoutKEDA removes the CRDs of KEDA with all of their objects.
func (s *stage) withoutKEDA() {
	s.Helper()
	s.kubectl(append([]string{"delete", "crd", "--ignore-not-found"}, keda...)...)
}

// scaled returns a stage whose Dataplane has the given autoscaling settings, and with TLS between KEDA and the
// operator.
func scaled(t *testing.T, autoscaling string) *stage {
	t.Helper()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	s.stop()
	s.start("--discovery-auth=strict")
	s.reshape(`{"autoscaling":` + autoscaling + `}`)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.scaleTargetRef.name", "front-door")
	return s
}

// Objects for KEDA are restored after changes, need a single write, stay while a reference of the Gateway is missing,
// and are deleted when autoscaling is removed.
func TestAutoscaling_ObjectsAreMaintained(t *testing.T) {
	t.Parallel()
	s := scaled(t, `{"minReplicas":2,"maxReplicas":4}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".spec.configMapTargetRef[0].name", "front-door")
	s.sees("configmap/front-door", `.metadata.labels.stunner\.l7mp\.io/owned-by`, "stunner")
	if ca := s.get("configmap/front-door", `.data.discovery-ca\.crt`); !strings.HasPrefix(
		ca, "-----BEGIN CERTIFICATE-----",
	) {
		t.Errorf("the TriggerAuthentication has the CA %q", ca)
	}
	s.kubectl(
		"patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p",
		`{"spec":{"minReplicaCount":0,"idleReplicaCount":0}}`,
	)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.minReplicaCount", "2")
	for _, kind := range keda {
		made := s.get(kind+"/front-door", ".metadata.uid")
		s.kubectl("delete", kind, "front-door", "-n", s.name)
		s.await(func(context.Context) error {
			if now := s.get(kind+"/front-door", ".metadata.uid"); now == "" || now == made {
				return fmt.Errorf("%s is %q, was %q", kind, now, made)
			}
			return nil
		})
	}
	s.reshape(
		`{"autoscaling":{"maxReplicas":6,"trigger":"prometheus","prometheus":{"serverAddress":"http://prometheus.example.net"}}}`,
	)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.triggers[0].type", "prometheus")
	// without a CA for Prometheus there is none
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "")
	s.reshape(`{"autoscaling":{"trigger":"external","prometheus":null}}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "front-door")
	s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "6")
	s.sees("scaledobjects.keda.sh/front-door", ".spec.triggers[0].type", "external")

	before := s.get("scaledobjects.keda.sh/front-door", ".metadata.uid") + s.get(
		"scaledobjects.keda.sh/front-door", ".metadata.resourceVersion",
	)
	s.stop()
	saved := s.kubectl("get", "dataplane", s.name, "-o", "json")
	s.kubectl("delete", "dataplane", s.name)
	restarted := time.Now()
	s.start("--discovery-auth=strict")
	s.sees("gateway/front-door", condition("Accepted"), "False")
	s.apply(saved)
	s.sees("gateway/front-door", condition("Accepted"), "True")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media") // this change needs a write
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.labels.team", "media")
	writes := map[string]int{}
	for _, e := range s.writes(restarted) {
		if e.Group == "keda.sh" {
			writes[e.Verb+" "+e.Resource]++
		}
	}
	if now := s.get("scaledobjects.keda.sh/front-door", ".metadata.uid"); !strings.HasPrefix(before, now) ||
		writes["patch scaledobjects"] != 1 || writes["delete scaledobjects"] != 0 {
		t.Errorf("the ScaledObject was %s, is %s; writes %v", before, now, writes)
	}

	// KEDA sets a finalizer. The operator must not repeat the delete request while it is pending.
	s.kubectl(
		"patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p",
		`{"metadata":{"finalizers":["finalizer.keda.sh"]}}`,
	)
	ended := time.Now()
	s.reshape(`{"autoscaling":null}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=voice", "--overwrite")
	s.sees("deployment/front-door", ".metadata.labels.team", "voice")
	deletes := 0
	for _, e := range s.writes(ended) {
		if e.Verb == "delete" && e.Resource == "scaledobjects" {
			deletes++
		}
	}
	if deletes != 1 {
		t.Errorf("%d requests to delete the ScaledObject", deletes)
	}
	s.kubectl(
		"patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p",
		`{"metadata":{"finalizers":null}}`,
	)
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.name", "")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
}

// When the operator stops setting spec.replicas, the value stays, another field manager can own it, and the operator
// takes it over when replicas is set again. If the field had no owner, the API server would default it to 1 and delete
// the other pods with their calls.
func TestReplicas_AreHandedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	s.reshape(`{"replicas":3}`)
	s.sees("deployment/front-door", ".spec.replicas", "3")
	numbers := s.follow("deployment/front-door", ".spec.replicas")
	said := `.metadata.managedFields[?(@.manager=="stunner-operator")].fieldsV1.f:spec.f:replicas`
	left := func() {
		s.Helper()
		s.sees("deployment/front-door", said, "")
	}
	s.sees("deployment/front-door", said, "{}")

	s.reshape(`{"autoscaling":{"maxReplicas":9}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "9")
	left()
	// through the scale subresource, as an autoscaler does
	s.kubectl("scale", "deployment", "front-door", "-n", s.name, "--replicas=5")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	s.sees("deployment/front-door", ".spec.replicas", "5")

	s.reshape(`{"autoscaling":null,"replicas":null}`)
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.name", "")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=voice", "--overwrite")
	s.sees("deployment/front-door", ".metadata.labels.team", "voice")
	s.sees("deployment/front-door", ".spec.replicas", "5")

	s.reshape(`{"replicas":4}`)
	s.sees("deployment/front-door", ".spec.replicas", "4")
	s.reshape(`{"replicas":null}`) // neither an autoscaler nor the Dataplane sets the number
	left()
	s.sees("deployment/front-door", ".spec.replicas", "4")
	s.reshape(`{"replicas":2}`)
	s.sees("deployment/front-door", ".spec.replicas", "2")
	if got, want := numbers("2"), "3 5 4 2"; got != want {
		t.Errorf("spec.replicas had the values %s, want %s", got, want)
	}
}

// follow watches a field and collects its values. The returned function waits until the field has the last value.
func (s *stage) follow(object, jsonpath string) func(last string) string {
	s.Helper()
	out := filepath.Join(s.dir, "followed")
	f, err := os.Create(out)
	s.must(err)
	defer f.Close()
	cmd := control.Command(
		s.Context(), "get", object, "-n", s.name, "--watch", "-o", "jsonpath={"+jsonpath+"}{\"\\n\"}",
	)
	cmd.Stdout = f
	s.must(cmd.Start())
	s.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	values := func() (seen []string) {
		text, err := os.ReadFile(out)
		s.must(err)
		for value := range strings.FieldsSeq(string(text)) {
			if len(seen) == 0 || seen[len(seen)-1] != value {
				seen = append(seen, value)
			}
		}
		return seen
	}
	s.await(func(context.Context) error {
		if len(values()) == 0 {
			return errors.New("the watch has not started")
		}
		return nil
	})
	return func(last string) string {
		s.Helper()
		s.await(func(context.Context) error {
			if seen := values(); seen[len(seen)-1] != last {
				return fmt.Errorf("%s of %s had the values %v, not yet %s", jsonpath, object, seen, last)
			}
			return nil
		})
		return strings.Join(values(), " ")
	}
}

// The operator neither changes nor deletes KEDA objects that users have created with the name that it would use. A
// condition reports the conflict, and the Gateway is served. Server-side apply alone would not detect this, because no
// field conflicts.
func TestAutoscaling_LeavesForeignObjects(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	root, err := bed.Root()
	s.must(err)
	byHand, err := os.ReadFile(filepath.Join(root, "keda/prometheus.yaml"))
	s.must(err)
	s.apply(strings.ReplaceAll(string(byHand), "namespace: stunner-system", "namespace: "+s.name))
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.kubectl("scale", "deployment", "front-door", "-n", s.name, "--replicas=4")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	s.sees("deployment/front-door", ".spec.replicas", "4")
	const object, token = "scaledobjects.keda.sh/front-door", "triggerauthentications.keda.sh/front-door"
	s.apply(`{apiVersion: keda.sh/v1alpha1, kind: TriggerAuthentication, metadata: {name: front-door, namespace: ` + s.name + `},
		spec: {secretTargetRef: [{parameter: bearerToken, name: prometheus, key: token}]}}`)
	whose := func() (versions string) {
		for _, o := range []string{object, token} {
			versions += s.get(o, ".metadata.uid") + " " + s.get(o, ".metadata.resourceVersion") + " "
		}
		return versions
	}
	told := func(kind string) {
		s.Helper()
		s.await(func(context.Context) error {
			said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Autoscaled")].message`)
			if !strings.Contains(said, "refuses "+kind) || !strings.Contains(said, "is not this Gateway's") {
				return fmt.Errorf("the message is %q", said)
			}
			return nil
		})
	}
	before := whose()
	s.expose("192.0.2.7")
	s.stop()
	s.start("--discovery-auth=strict") // with this the operator creates a TriggerAuthentication
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	told("ScaledObject")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.reshape(`{"autoscaling":null}`)
	s.sees("gateway/front-door", condition("Autoscaled"), "")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=voice", "--overwrite")
	s.sees("deployment/front-door", ".metadata.labels.team", "voice")
	if after := whose(); after != before {
		t.Errorf("the foreign object was %s and is %q", before, after)
	}
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	s.kubectl("delete", object, "-n", s.name)
	s.sees(object, ".spec.maxReplicaCount", "3")
	told("TriggerAuthentication")
	s.kubectl("delete", token, "-n", s.name)
	s.sees(token, ".spec.configMapTargetRef[0].name", "front-door")
	s.sees("gateway/front-door", condition("Autoscaled"), "")
}

// The documented YAML for manual autoscaling is valid: the API server accepts every field.
func TestAutoscaling_ByHand(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	root, err := bed.Root()
	s.must(err)
	for _, file := range []string{"external.yaml", "prometheus.yaml", "triggerauthentication.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "keda", file))
		s.must(err)
		s.kubectl(
			"apply", "--dry-run=server", "--validate=strict", "-f",
			s.file(strings.ReplaceAll(string(text), "namespace: stunner-system", "namespace: "+s.name)),
		)
	}
}
