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

// A Gateway and a route produce a config, a Deployment, a Service and conditions. The Gateway is programmed when the
// Service has an address.
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
		if c := s.config(); len(c.Listeners) != 2 || c.Listeners[0].PublicAddress != "192.0.2.7" ||
			len(c.Clusters) != 1 {
			return fmt.Errorf("config %+v", c)
		}
		return nil
	})
	s.kubectl("delete", "gateway", "front-door", "-n", s.name)
	s.sees("deployment/front-door", ".metadata.name", "")
	s.sees("service/front-door", ".metadata.name", "")
	s.await(func(context.Context) error {
		if c := s.config(); c.Admin.Name != "" {
			return errors.New("the config of the deleted Gateway is still served")
		}
		return nil
	})
}

// A missing reference of a Gateway removes nothing. A condition reports it, and everything recovers when the object is
// re-created.
func TestGateway_SurvivesMissingReferences(t *testing.T) {
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
		version := s.get("service/front-door", ".metadata.resourceVersion") + s.get(
			"deployment/front-door", ".metadata.uid",
		)
		saved := s.kubectl("get", lost, "-n", s.name, "-o", "json")
		s.kubectl("delete", lost, "-n", s.name)
		s.sees("gateway/front-door", condition("Programmed"), "False")
		c := s.config()
		if after := s.get("service/front-door", ".metadata.resourceVersion") + s.get(
			"deployment/front-door", ".metadata.uid",
		); after != version || c.Revision() != before {
			t.Errorf("without %s: objects %s, were %s; config %s, was %s", lost, after, version, c.Revision(), before)
		}
		s.apply(saved)
		s.sees("gateway/front-door", condition("Programmed"), "True")
	}
}

// An operator that starts in a cluster with correct objects writes nothing and serves the same config.
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
	// This change needs a write, which proves that all earlier changes have been processed.
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	for _, e := range s.writes(restarted) {
		if !e.Time.After(restarted) || e.Resource == "deployments" || e.Resource == "services" ||
			e.Resource == "configmaps" || e.Resource == "gateways" {
			continue // the label is copied
		}
		t.Errorf("unneeded write: %s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name)
	}
}

// Changes by others to fields that the operator sets are reverted. Fields that others add stay.
func TestObjects_AreRestored(t *testing.T) {
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

// a changed EndpointSlice updates the config of its Gateway, translates no other Gateway, and writes nothing,
// because the ConfigMap contains Services by name. The test does not run in parallel, because every operator processes
// the routes of all tests.
func TestEndpointChange_TranslatesItsGatewayOnly(t *testing.T) {
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees(
		"udproutes.stunner.l7mp.io/to-echo", `.status.parents[0].conditions[?(@.type=="ResolvedRefs")].status`, "True",
	)
	translations, since := 0.0, time.Now()
	s.await(func(context.Context) error { // the operator still receives events for its own status writes
		if now := s.metric("stunner_operator_translations_total"); now != translations {
			translations, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return errors.New("the operator keeps translating")
		}
		return nil
	})
	changed := time.Now()
	s.moveEcho("192.0.2.55")
	s.await(func(context.Context) error {
		if c := s.config(); len(c.Clusters) != 1 || fmt.Sprint(c.Clusters[0].Endpoints)[1:11] != "192.0.2.55" {
			return fmt.Errorf("config has %v", c.Clusters)
		}
		return nil
	})
	if made := s.metric("stunner_operator_translations_total") - translations; made > 2 {
		t.Errorf("%.0f translations after a change of one EndpointSlice, want 1", made)
	}
	// This change needs a write, which proves that all earlier changes have been processed.
	labelled := time.Now()
	s.kubectl("label", "gateway", "front-door", "-n", s.name, "team=media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	for _, e := range s.writes(changed) {
		if e.Time.Before(labelled) {
			t.Errorf("unneeded write: %s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name)
		}
	}
}

// an operator that starts while a certificate is missing publishes nothing, so that dataplanes keep the listener.
// The objects stay.
func TestRestart_TakesNoListenerAway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	chain, private, err := bed.Certificate()
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.crt"), chain, 0o600))
	s.must(os.WriteFile(filepath.Join(s.dir, "tls.key"), private, 0o600))
	certify := func() {
		s.kubectl(
			"create", "secret", "tls", "door", "-n", s.name, "--cert", filepath.Join(s.dir, "tls.crt"), "--key",
			filepath.Join(s.dir, "tls.key"),
		)
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
			return errors.New("the ConfigMap does not contain the listener yet")
		}
		return nil
	})
	before := shown()
	s.stop()
	s.kubectl("delete", "secret", "door", "-n", s.name)
	s.start()
	s.sees(
		"gateway/front-door", `.status.listeners[?(@.name=="tls")].conditions[?(@.type=="ResolvedRefs")].status`,
		"False",
	)
	if c := s.config(); c.Admin.Name != "" {
		t.Errorf("a config with %d listeners was published", len(c.Listeners))
	}
	if after := shown(); after != before {
		t.Errorf("the ConfigMap has changed:\n%s\nwas\n%s", after, before)
	}
	certify()
	s.await(three)
}

// If the API server rejects an object, the Gateway reports the message until the object is accepted. The previous
// object stays.
func TestGateway_ReportsRejectedObjects(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	before := s.get("service/front-door", ".spec.ports")
	s.kubectl("annotate", "gateway", "front-door", "-n", s.name, `stunner.l7mp.io/nodeport={"udp":80}`)
	s.sees("gateway/front-door", condition("Programmed"), "False")
	said := s.get("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`)
	for _, want := range []string{
		"the API server refuses Service " + s.name + "/front-door", "provided port is not in the valid range",
		"stays in force",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the message is %q, want it to contain %q", said, want)
		}
	}
	if after := s.get("service/front-door", ".spec.ports"); after != before {
		t.Errorf("ports of the Service are %s, were %s", after, before)
	}
	if c := s.config(); len(c.Listeners) != 2 {
		t.Errorf("%d listeners are published", len(c.Listeners))
	}
	s.await(func(context.Context) error {
		if told := s.events(); !strings.Contains(
			told, "Gateway front-door Warning Invalid Programmed is False: the API server refuses Service",
		) {
			return fmt.Errorf("no event reports the rejection:\n%s", told)
		}
		return nil
	})
	s.kubectl(
		"annotate", "gateway", "front-door", "-n", s.name, "--overwrite", `stunner.l7mp.io/nodeport={"udp":30048}`,
	)
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("service/front-door", ".spec.ports[0].nodePort", "30048")
}

// An operator that starts while the credentials are missing publishes no config. It re-creates deleted objects, because
// pods and Services do not depend on the credentials.
func TestRestart_RecreatesDeletedObjects(t *testing.T) {
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
		t.Error("the existing Service was written")
	}
	s.apply(saved)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
}
