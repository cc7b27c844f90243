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

// A Gateway and a route become a config, a Deployment, a Service and conditions; the address of the Service makes it programmed.
func TestGateway_IsProgrammed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.sees("gateway/front-door", condition("Accepted"), "True")
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("gateway/front-door", ".status.addresses[0].value", "192.0.2.7")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.sees("udproutes.stunner.l7mp.io/to-echo", `.status.parents[0].conditions[?(@.type=="Accepted")].status`, "True")
	s.await(func(context.Context) error {
		if c := s.config(); len(c.Listeners) != 2 || c.Listeners[0].PublicAddress != "192.0.2.7" || len(c.Clusters) != 1 {
			return fmt.Errorf("config %+v", c)
		}
		return nil
	})
	s.kubectl("delete", "gateway", "front-door", "-n", s.name)
	s.sees("deployment/front-door", ".metadata.name", "")
	s.sees("service/front-door", ".metadata.name", "")
	s.await(func(context.Context) error {
		if c := s.config(); c.Admin.Name != "" {
			return errors.New("the config of a Gateway that is gone is still there")
		}
		return nil
	})
}

// What a Gateway needs and loses takes nothing away: conditions say so, and everything heals when it comes back.
func TestGateway_OutlivesWhatItNeeds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	for _, lost := range []string{"secret/turn-credentials", "gatewayconfig/" + s.name, "dataplane/" + s.name} {
		var before string
		s.await(func(context.Context) error {
			c := s.config()
			before = c.Revision()
			if len(c.Listeners) != 2 || c.Listeners[0].PublicAddress == "" {
				return errors.New("not published yet")
			}
			return nil
		})
		version := s.get("service/front-door", ".metadata.resourceVersion") + s.get("deployment/front-door", ".metadata.uid")
		saved := s.kubectl("get", lost, "-n", s.name, "-o", "json")
		s.kubectl("delete", lost, "-n", s.name)
		s.sees("gateway/front-door", condition("Programmed"), "False")
		c := s.config()
		if after := s.get("service/front-door", ".metadata.resourceVersion") + s.get("deployment/front-door", ".metadata.uid"); after != version || c.Revision() != before {
			t.Errorf("without %s: objects %s, were %s; config %s, was %s", lost, after, version, c.Revision(), before)
		}
		s.apply(saved)
		s.sees("gateway/front-door", condition("Programmed"), "True")
	}
}

// An operator that starts over a cluster that is as it should be writes nothing, and serves what it served.
func TestRestart_WritesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	before := s.config()
	s.stop()
	restarted := time.Now()
	s.start()
	after := s.config()
	if after.Revision() != before.Revision() {
		t.Errorf("config %s, was %s", after.Revision(), before.Revision())
	}
	s.leads()
	// Something that needs a write, to know that all that was before it is done.
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	for _, e := range s.writes(restarted) {
		if !e.Time.After(restarted) || e.Resource == "deployments" || e.Resource == "services" || e.Resource == "configmaps" || e.Resource == "gateways" {
			continue // the label spreads
		}
		t.Errorf("needless: %s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name)
	}
}

// What others do to our objects is mended; what they add to them stays.
func TestObjects_AreMended(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.kubectl("scale", "deployment", "front-door", "-n", s.name, "--replicas=3")
	s.kubectl("label", "deployment", "front-door", "-n", s.name, "stunner.l7mp.io/related-gateway-name-", "--overwrite")
	s.sees("deployment/front-door", `.metadata.labels.stunner\.l7mp\.io/related-gateway-name`, "front-door")
	s.sees("deployment/front-door", ".spec.replicas", "3")
	s.kubectl("delete", "deployment", "front-door", "-n", s.name)
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	s.kubectl("label", "deployment", "front-door", "-n", s.name, "watched-by=somebody")
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team-")
	s.sees("deployment/front-door", ".metadata.labels.team", "")
	s.sees("deployment/front-door", ".metadata.labels.watched-by", "somebody")
}

// a changed EndpointSlice reaches the config of its Gateway, translates no other, and writes nothing: the ConfigMap shows Services by name.
// It runs alone, because every operator looks at the routes of all tests.
func TestEndpoint_CostsWhatItConcerns(t *testing.T) {
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("udproutes.stunner.l7mp.io/to-echo", `.status.parents[0].conditions[?(@.type=="ResolvedRefs")].status`, "True")
	translations, since := 0.0, time.Now()
	s.await(func(context.Context) error { // the statuses that it has written come back to it
		if now := s.metric("stunner_operator_translations_total"); now != translations {
			translations, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return errors.New("the operator does not come to rest")
		}
		return nil
	})
	changed := time.Now()
	s.kubectl("patch", "endpointslice", "echo", "-n", s.name, "--type=json", "-p", `[{"op":"replace","path":"/endpoints/0/addresses/0","value":"192.0.2.55"}]`)
	s.await(func(context.Context) error {
		if c := s.config(); len(c.Clusters) != 1 || fmt.Sprint(c.Clusters[0].Endpoints)[1:11] != "192.0.2.55" {
			return fmt.Errorf("config has %v", c.Clusters)
		}
		return nil
	})
	if made := s.metric("stunner_operator_translations_total") - translations; made > 2 {
		t.Errorf("%.0f translations for one slice of one route of one Gateway", made)
	}
	// Something that needs a write, to know that all that was before it is done.
	labelled := time.Now()
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	for _, e := range s.writes(changed) {
		if e.Time.Before(labelled) {
			t.Errorf("needless: %s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name)
		}
	}
}

// an operator that starts while a certificate is missing publishes nothing, so that dataplanes keep the listener, and objects stay.
func TestRestart_TakesNoListenerAway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	chain, private, err := bed.Certificate()
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.crt"), chain, 0o600))
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.key"), private, 0o600))
	certify := func() {
		s.kubectl("create", "secret", "tls", "door", "-n", s.name, "--cert", filepath.Join(s.dir, "tls.crt"), "--key", filepath.Join(s.dir, "tls.key"))
	}
	certify()
	s.kubectl("patch", "gateway", "front-door", "-n", s.name, "--type=json", "-p",
		`[{"op":"add","path":"/spec/listeners/-","value":{"name":"tls","port":5349,"protocol":"TURN-TLS","tls":{"certificateRefs":[{"name":"door"}]}}}]`)
	three := func(context.Context) error {
		if c := s.config(); len(c.Listeners) != 3 {
			return fmt.Errorf("%d listeners, want 3", len(c.Listeners))
		}
		return nil
	}
	s.await(three)
	shown := func() string { return s.get("configmap/front-door", `.data.stunnerd\.conf`) }
	s.await(func(context.Context) error {
		if !strings.Contains(shown(), "TURN-TLS") {
			return errors.New("the ConfigMap does not show the listener yet")
		}
		return nil
	})
	before := shown()
	s.stop()
	s.kubectl("delete", "secret", "door", "-n", s.name)
	s.start()
	s.sees("gateway/front-door", `.status.listeners[?(@.name=="tls")].conditions[?(@.type=="ResolvedRefs")].status`, "False")
	if c := s.config(); c.Admin.Name != "" {
		t.Errorf("a config with %d listeners was published", len(c.Listeners))
	}
	if after := shown(); after != before {
		t.Errorf("the ConfigMap has changed:\n%s\nwas\n%s", after, before)
	}
	certify()
	s.await(three)
}

// What the API server does not take is said on the Gateway in its words, until it takes it. What was there before stays.
func TestGateway_SaysWhatIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	before := s.get("service/front-door", ".spec.ports")
	s.kubectl("annotate", "gateway", "front-door", "-n", s.name, `stunner.l7mp.io/nodeport={"udp":80}`)
	s.sees("gateway/front-door", condition("Programmed"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`)
	for _, want := range []string{"the API server refuses Service " + s.name + "/front-door", "provided port is not in the valid range", "stays in force"} {
		if !strings.Contains(said, want) {
			t.Errorf("the message is %q, which does not say %q", said, want)
		}
	}
	if after := s.get("service/front-door", ".spec.ports"); after != before {
		t.Errorf("ports of the Service are %s, were %s", after, before)
	}
	if c := s.config(); len(c.Listeners) != 2 {
		t.Errorf("%d listeners are published", len(c.Listeners))
	}
	s.await(func(context.Context) error {
		if told := s.events(); !strings.Contains(told, "Gateway front-door Warning Invalid Programmed is False: the API server refuses Service") {
			return fmt.Errorf("events do not tell of it:\n%s", told)
		}
		return nil
	})
	s.kubectl("annotate", "gateway", "front-door", "-n", s.name, "--overwrite", `stunner.l7mp.io/nodeport={"udp":30048}`)
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("service/front-door", ".spec.ports[0].nodePort", "30048")
}

// An operator that begins while the credentials are missing publishes nothing, but what somebody deletes meanwhile is made again, so that calls find
// pods and an address: neither needs credentials.
func TestRestart_MakesAgainWhatIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	saved := s.kubectl("get", "secret", "turn-credentials", "-n", s.name, "-o", "json")
	s.stop()
	kept := s.get("service/front-door-tcp", ".metadata.resourceVersion")
	s.kubectl("delete", "secret", "turn-credentials", "-n", s.name)
	s.kubectl("delete", "deployment", "front-door", "-n", s.name)
	s.kubectl("delete", "service", "front-door", "-n", s.name)
	s.start()
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.sees("service/front-door", ".spec.ports[0].name", "udp")
	s.sees("gateway/front-door", condition("Accepted"), "False")
	if c := s.config(); c.Admin.Name != "" {
		t.Errorf("a config was published: %+v", c)
	}
	if now := s.get("service/front-door-tcp", ".metadata.resourceVersion"); now != kept {
		t.Error("the Service that was there is written")
	}
	s.apply(saved)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
}
