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

// keda are the kinds that are made for KEDA.
var keda = []string{"scaledobjects.keda.sh", "triggerauthentications.keda.sh"}

// Autoscaling waits for KEDA, which may come and go: nothing fails meanwhile, statuses say what to install, and what is not there is not asked for. It
// runs alone: the kinds of KEDA are there for all tests or for none.
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
		if said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Accepted")].message`); !strings.Contains(said, "waits for KEDA") {
			return fmt.Errorf("the Gateway says %q", said)
		}
		return nil
	})
	s.sees("gateway/front-door", condition("Accepted"), "True")
	all, err := control.Audit(begun)
	s.must(err)
	for _, e := range all {
		if e.User == s.user() && e.Group == "keda.sh" && e.Resource != "" {
			t.Errorf("%s %s of a kind that nobody knows", e.Verb, e.Resource)
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

// withoutKEDA removes the kinds of KEDA, and all objects of them.
func (s *stage) withoutKEDA() {
	s.Helper()
	s.kubectl(append([]string{"delete", "crd", "--ignore-not-found"}, keda...)...)
}

// scaled is a stage on which autoscaling is what a Dataplane says, and KEDA asks over TLS.
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

// What is made for KEDA is mended like the rest, needs no second write, outlives what it is made from, and goes when it is no longer asked for.
func TestAutoscaling_IsMadeAndMended(t *testing.T) {
	t.Parallel()
	s := scaled(t, `{"minReplicas":2,"maxReplicas":4}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".spec.configMapTargetRef[0].name", "front-door")
	s.sees("configmap/front-door", `.metadata.labels.stunner\.l7mp\.io/owned-by`, "stunner")
	if ca := s.get("configmap/front-door", `.data.discovery-ca\.crt`); !strings.HasPrefix(ca, "-----BEGIN CERTIFICATE-----") {
		t.Errorf("KEDA is shown the CA %q", ca)
	}
	s.kubectl("patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p", `{"spec":{"minReplicaCount":0,"idleReplicaCount":0}}`)
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
	s.reshape(`{"autoscaling":{"maxReplicas":6,"trigger":"prometheus","prometheus":{"serverAddress":"http://prometheus.example.net"}}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".spec.triggers[0].type", "prometheus")
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "") // there is no CA to know a Prometheus by
	s.reshape(`{"autoscaling":{"trigger":"external","prometheus":null}}`)
	s.sees("triggerauthentications.keda.sh/front-door", ".metadata.name", "front-door")
	s.sees("scaledobjects.keda.sh/front-door", ".spec.maxReplicaCount", "6")
	s.sees("scaledobjects.keda.sh/front-door", ".spec.triggers[0].type", "external")

	before := s.get("scaledobjects.keda.sh/front-door", ".metadata.uid") + s.get("scaledobjects.keda.sh/front-door", ".metadata.resourceVersion")
	s.stop()
	saved := s.kubectl("get", "dataplane", s.name, "-o", "json")
	s.kubectl("delete", "dataplane", s.name)
	restarted := time.Now()
	s.start("--discovery-auth=strict")
	s.sees("gateway/front-door", condition("Accepted"), "False")
	s.apply(saved)
	s.sees("gateway/front-door", condition("Accepted"), "True")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media") // something that needs a write
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.labels.team", "media")
	writes := map[string]int{}
	for _, e := range s.writes(restarted) {
		if e.Group == "keda.sh" {
			writes[e.Verb+" "+e.Resource]++
		}
	}
	if now := s.get("scaledobjects.keda.sh/front-door", ".metadata.uid"); !strings.HasPrefix(before, now) || writes["patch scaledobjects"] != 1 || writes["delete scaledobjects"] != 0 {
		t.Errorf("the ScaledObject was %s, is %s; writes %v", before, now, writes)
	}

	// KEDA has a finalizer: what goes is not deleted again and again.
	s.kubectl("patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p", `{"metadata":{"finalizers":["finalizer.keda.sh"]}}`)
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
	s.kubectl("patch", "scaledobjects.keda.sh", "front-door", "-n", s.name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	s.sees("scaledobjects.keda.sh/front-door", ".metadata.name", "")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
}

// The number of pods stays what it is when the operator stops to say it, belongs to whoever scales, and is said again when somebody asks for it: a field
// that nobody says is 1 to the API server, which would end the calls in all other pods.
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
	s.kubectl("scale", "deployment", "front-door", "-n", s.name, "--replicas=5") // by the subresource, as an autoscaler does
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
	s.reshape(`{"replicas":null}`) // nobody scales, and nobody says a number
	left()
	s.sees("deployment/front-door", ".spec.replicas", "4")
	s.reshape(`{"replicas":2}`)
	s.sees("deployment/front-door", ".spec.replicas", "2")
	if got, want := numbers("2"), "3 5 4 2"; got != want {
		t.Errorf("the number of pods went %s, want %s", got, want)
	}
}

// follow collects the values that a field has had, until it has the last one.
func (s *stage) follow(object, jsonpath string) func(last string) string {
	s.Helper()
	out := filepath.Join(s.dir, "followed")
	f, err := os.Create(out)
	s.must(err)
	defer f.Close()
	cmd := control.Command(s.Context(), "get", object, "-n", s.name, "--watch", "-o", "jsonpath={"+jsonpath+"}{\"\\n\"}")
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
			return errors.New("the watch has not begun")
		}
		return nil
	})
	return func(last string) string {
		s.Helper()
		s.await(func(context.Context) error {
			if seen := values(); seen[len(seen)-1] != last {
				return fmt.Errorf("%s of %s was %v, not %s yet", jsonpath, object, seen, last)
			}
			return nil
		})
		return strings.Join(values(), " ")
	}
}

// What somebody has made by hand goes on: the operator neither takes it nor removes it, and says so when it would have made one itself. The Gateway is
// served meanwhile. That the API server sees no conflict is no permission.
func TestAutoscaling_TakesNothingFromOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	root, err := bed.Root()
	s.must(err)
	byHand, err := os.ReadFile(filepath.Join(root, "keda/prometheus.yaml"))
	s.must(err)
	s.apply(strings.ReplaceAll(string(byHand), "namespace: stunner-system", "namespace: "+s.name), "--validate=strict")
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
				return fmt.Errorf("people are told %q", said)
			}
			return nil
		})
	}
	before := whose()
	s.expose("192.0.2.7")
	s.stop()
	s.start("--discovery-auth=strict") // for which the operator would make a TriggerAuthentication
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	told("ScaledObject")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.reshape(`{"autoscaling":null}`)
	s.sees("gateway/front-door", condition("Autoscaled"), "")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=voice", "--overwrite")
	s.sees("deployment/front-door", ".metadata.labels.team", "voice")
	if after := whose(); after != before {
		t.Errorf("what somebody else has made was %s and is %q", before, after)
	}
	s.reshape(`{"autoscaling":{"maxReplicas":3}}`)
	s.kubectl("delete", object, "-n", s.name)
	s.sees(object, ".spec.maxReplicaCount", "3")
	told("TriggerAuthentication")
	s.kubectl("delete", token, "-n", s.name)
	s.sees(token, ".spec.configMapTargetRef[0].name", "front-door")
	s.sees("gateway/front-door", condition("Autoscaled"), "")
}

// An API server takes the YAML for people, every field of it.
func TestAutoscaling_ByHand(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(control.InstallKEDA(t.Context()))
	root, err := bed.Root()
	s.must(err)
	for _, file := range []string{"external.yaml", "prometheus.yaml", "triggerauthentication.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "keda", file))
		s.must(err)
		s.apply(strings.ReplaceAll(string(text), "namespace: stunner-system", "namespace: "+s.name), "--dry-run=server", "--validate=strict")
	}
}
