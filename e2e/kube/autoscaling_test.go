package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// keda lists the KEDA kinds of the objects that the operator creates.
var keda = []string{"scaledobjects.keda.sh", "triggerauthentications.keda.sh"}

// The operator works while KEDA is missing, and while its CRDs are installed or removed. The status names the missing
// installation, and the operator requests no kinds that do not exist. The test does not run in parallel with others,
// because the CRDs exist for all tests or for none. It leaves them installed.
func TestAutoscalingWaitsForKEDA(t *testing.T) {
	without := append([]string{"delete", "crd", "--ignore-not-found"}, keda...)
	if _, err := control.Kubectl(t.Context(), without...); err != nil { // another test may have installed them
		t.Fatal(err)
	}
	begun := time.Now()
	s := newInstallation(t)
	s.ends = "keda.sh"
	s.reshape(`{"autoscaling":{"maxReplicas":4}}`)
	const waits = `.status.conditions[?(@.type=="Autoscaled")].reason`
	missing := func() {
		t.Helper()
		s.sees("dataplane/"+s.name, waits, "KEDAMissing")
		s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	}
	missing()
	s.sees("dataplane/"+s.name, condition("Accepted"), "True")
	s.says("gateway/front-door", "Accepted", "waits for KEDA")
	s.sees("gateway/front-door", condition("Accepted"), "True")
	all, err := control.Audit(begun)
	s.must(err)
	for _, e := range all {
		if e.User == s.user() && e.Group == "keda.sh" && e.Resource != "" {
			t.Errorf("%s %s: the kind does not exist", e.Verb, e.Resource)
		}
	}
	for round := range 2 {
		s.must(control.InstallKEDA(t.Context()))
		s.sees("dataplane/"+s.name, waits, "KEDAFound")
		s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "4")
		s.sees("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`, "")
		if round == 0 {
			s.kubectl(without...)
			missing()
		}
	}
}

// installKEDA installs the CRDs of KEDA, once for all tests.
var installKEDA = sync.OnceValue(func() error { return control.InstallKEDA(context.Background()) })

// Objects for KEDA are restored after changes, need a single write, stay while a reference of the Gateway is missing,
// and are deleted when autoscaling is removed.
func TestAutoscalingObjectsAreMaintained(t *testing.T) {
	t.Parallel()
	s := newInstallation(t, "--discovery-auth=strict") // with TLS between KEDA and the operator
	s.must(installKEDA())
	s.reshape(`{"autoscaling":{"minReplicas":2,"maxReplicas":4}}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".spec.configMapTargetRef[0].name", "front-door")
	if ca := s.get("configmap/front-door", `.data.discovery-ca\.crt`); !strings.HasPrefix(
		ca, "-----BEGIN CERTIFICATE-----",
	) {
		t.Errorf("the TriggerAuthentication has the CA %q", ca)
	}
	s.set("scaledobjects.keda.sh/front-door", `{"spec":{"minReplicaCount":0,"idleReplicaCount":0}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.minReplicaCount", "2")
	for _, kind := range keda {
		made := s.get(kind+"/front-door", ".metadata.uid")
		s.remove(kind + "/front-door")
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
	// without a CA for Prometheus there is no authentication object
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
	s.remove("dataplane/" + s.name)
	restarted := time.Now()
	s.start("--discovery-auth=strict")
	s.sees("gateway/front-door", condition("Accepted"), "False")
	s.apply(saved)
	s.sees("gateway/front-door", condition("Accepted"), "True")
	s.label("gateway/front-door", "team", "media") // this change needs a write
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.labels.team", "media")
	var writes map[string]int
	s.await(func(context.Context) error { // the API server writes its log after its answer
		writes = map[string]int{}
		for _, e := range s.writes(restarted) {
			if e.Group == "keda.sh" {
				writes[e.Verb+" "+e.Resource]++
			}
		}
		if writes["patch scaledobjects"] == 0 {
			return errors.New("no write of the ScaledObject is logged")
		}
		return nil
	})
	if now := s.get("scaledobjects.keda.sh/front-door", ".metadata.uid"); !strings.HasPrefix(before, now) ||
		writes["patch scaledobjects"] != 1 || writes["delete scaledobjects"] != 0 {
		t.Errorf("the ScaledObject was %s, is %s; writes %v", before, now, writes)
	}

	// A finalizer of KEDA keeps the object after the delete request. The operator must not repeat the request meanwhile.
	s.set("scaledobjects.keda.sh/front-door", `{"metadata":{"finalizers":["finalizer.keda.sh"]}}`)
	ended := time.Now()
	s.reshape(`{"autoscaling":null}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "")
	s.processed()
	deletes := 0
	for _, e := range s.writes(ended) {
		if e.Verb == "delete" && e.Resource == "scaledobjects" {
			deletes++
		}
	}
	if deletes != 1 {
		t.Errorf("%d requests to delete the ScaledObject", deletes)
	}
	s.set("scaledobjects.keda.sh/front-door", `{"metadata":{"finalizers":null}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.name", "")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
}

// When the operator stops setting spec.replicas, the value stays, another field manager can own it, and the operator
// takes it over when replicas is set again. If the field had no owner, the API server would default it to 1 and delete
// the other pods with their calls.
func TestReplicasAreHandedOver(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.must(installKEDA())
	s.reshape(`{"replicas":3}`)
	s.sees("deployment/front-door", ".spec.replicas", "3")
	numbers := s.follow("deployment/front-door", ".spec.replicas")
	said := `.metadata.managedFields[?(@.manager=="stunner-operator")].fieldsV1.f:spec.f:replicas`
	s.sees("deployment/front-door", said, "{}")

	s.reshape(`{"autoscaling":{"maxReplicas":9}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "9")
	s.sees("deployment/front-door", said, "")
	// through the scale subresource, as an autoscaler does
	s.set("deployment/front-door", `{"spec":{"replicas":5}}`)
	s.processed()
	s.sees("deployment/front-door", ".spec.replicas", "5")

	s.reshape(`{"autoscaling":null,"replicas":null}`)
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.name", "")
	s.processed()
	s.sees("deployment/front-door", ".spec.replicas", "5")

	s.reshape(`{"replicas":4}`)
	s.sees("deployment/front-door", ".spec.replicas", "4")
	s.reshape(`{"replicas":null}`) // neither an autoscaler nor the Dataplane sets the number
	s.sees("deployment/front-door", said, "")
	s.sees("deployment/front-door", ".spec.replicas", "4")
	s.reshape(`{"replicas":2}`)
	s.sees("deployment/front-door", ".spec.replicas", "2")
	if got, want := numbers("2"), "3 5 4 2"; got != want {
		t.Errorf("spec.replicas had the values %s, want %s", got, want)
	}
}

// follow watches a field and collects its values. The returned function waits until the field has the given value.
func (s *installation) follow(object, jsonpath string) func(last string) string {
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
func TestAutoscalingLeavesForeignObjects(t *testing.T) {
	t.Parallel()
	s := newInstallation(t, "--discovery-auth=strict") // with this flag the operator creates a TriggerAuthentication
	s.must(installKEDA())
	byHand := harnesstest.Read(t, "keda/prometheus.yaml")
	s.apply(strings.ReplaceAll(byHand, "namespace: stunner-system", "namespace: "+s.name))
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.set("deployment/front-door", `{"spec":{"replicas":4}}`)
	s.processed()
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
		s.says("gateway/front-door", "Autoscaled", "refuses "+kind)
		s.says("gateway/front-door", "Autoscaled", "is not this Gateway's")
	}
	before := whose()
	s.expose("192.0.2.7")
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	told("ScaledObject")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.reshape(`{"autoscaling":null}`)
	s.sees("gateway/front-door", condition("Autoscaled"), "")
	s.processed()
	if after := whose(); after != before {
		t.Errorf("the foreign object was %s and is %q", before, after)
	}
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	s.remove(object)
	s.sees(object, ".spec.maxReplicaCount", "3")
	told("TriggerAuthentication")
	s.remove(token)
	s.sees(token, ".spec.configMapTargetRef[0].name", "front-door")
	s.sees("gateway/front-door", condition("Autoscaled"), "")
}
