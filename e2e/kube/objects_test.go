package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Changes by others to fields that the operator sets are reverted. Fields that others add stay.
func TestObjectsAreRestored(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.set("deployment/front-door", `{"spec":{"replicas":3}}`)
	s.label("deployment/front-door", "stunner.l7mp.io/related-gateway-name", "")
	s.sees("deployment/front-door", `.metadata.labels.stunner\.l7mp\.io/related-gateway-name`, "front-door")
	s.sees("deployment/front-door", ".spec.replicas", "3")
	s.remove("deployment/front-door")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].name", "stunner-daemon")
	s.label("gateway/front-door", "team", "media")
	s.sees("deployment/front-door", ".metadata.labels.team", "media")
	s.label("deployment/front-door", "watched-by", "somebody")
	s.label("gateway/front-door", "team", "")
	s.sees("deployment/front-door", ".metadata.labels.team", "")
	s.sees("deployment/front-door", ".metadata.labels.watched-by", "somebody")
}

// a changed EndpointSlice updates the config of its Gateway, translates no other Gateway, and writes nothing,
// because the ConfigMap contains Services by name.
func TestEndpointChangeTranslatesItsGatewayOnly(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
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
	labelled := time.Now()
	s.processed()
	for _, e := range s.writes(changed) {
		if e.Time.Before(labelled) {
			t.Errorf("unneeded write: %s %s %s/%s", e.Verb, e.Resource, e.Namespace, e.Name)
		}
	}
}

// an operator that starts while a certificate is missing publishes the listener unchanged, from the standby
// Secret. The objects stay.
func TestRestartKeepsListenersWithoutACertificate(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	certify := s.withTLS()
	three := func(context.Context) error {
		if c := s.config(); len(c.Listeners) != 3 {
			return fmt.Errorf("%d listeners, want 3", len(c.Listeners))
		}
		return nil
	}
	s.await(three)
	shown := func() string { return s.get("configmap/front-door", `.data.stunnerd\.conf`) }
	s.await(func(context.Context) error {
		// When the Service has the port, the listener gets its address at the Service.
		if n := strings.Count(shown(), "service_addresses"); n != 3 {
			return fmt.Errorf("the ConfigMap has addresses of %d listeners, want 3", n)
		}
		return nil
	})
	before := shown()
	s.stop()
	s.remove("secret/door")
	s.start()
	s.sees(
		"gateway/front-door", `.status.listeners[?(@.name=="tls")].conditions[?(@.type=="ResolvedRefs")].status`,
		"False",
	)
	s.await(three)
	if after := shown(); after != before {
		t.Errorf("the ConfigMap has changed:\n%s\nwas\n%s", after, before)
	}
	certify()
	s.await(three)
}

// If the API server rejects an object, the Gateway reports the message until the object is accepted. The previous
// object stays.
func TestGatewayReportsRejectedObjects(t *testing.T) {
	t.Parallel()
	s := newInstallation(t) // the shared operator drops events above its rate limit
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	before := s.get("service/front-door", ".spec.ports")
	s.annotate("gateway/front-door", "stunner.l7mp.io/nodeport", `{"udp":80}`)
	s.sees("gateway/front-door", condition("Programmed"), "False")
	for _, want := range []string{
		"the API server refuses Service " + s.name + "/front-door", "provided port is not in the valid range",
		"stays in force",
	} {
		s.says("gateway/front-door", "Programmed", want)
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
	s.annotate("gateway/front-door", "stunner.l7mp.io/nodeport", `{"udp":30048}`)
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("service/front-door", ".spec.ports[0].nodePort", "30048")
}

// The admission policy of the operator rejects the capabilities of in-kernel forwarding, unless its setting offload
// permits them. The pods then forward media in user space, and condition OffloadUnavailable names the setting.
func TestGatewayIsServedWithoutDeniedCapabilities(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	const added = ".spec.template.spec.containers[0].securityContext.capabilities.add"
	const capabilities = `{"spec":{"template":{"spec":{"containers":[{"name":"stunner-daemon",` +
		`"securityContext":{"capabilities":{"add":["BPF","NET_ADMIN"]}}}]}}}}`
	s.sees("deployment/front-door", ".metadata.name", "front-door")
	s.await(func(ctx context.Context) error { // the API server gets the policy through a watch
		err := s.asOperator(ctx, "patch deployment front-door", capabilities)
		if err == nil || !strings.Contains(err.Error(), "workloadPolicy.offload") {
			return errors.Join(errors.New("the capabilities are not rejected yet"), err)
		}
		return nil
	})
	s.set("dataplane/"+s.name, `{"spec":{"offloadEngine":"TC","labels":{"step":"one"}}}`)
	s.sees("deployment/front-door", ".spec.template.metadata.labels.step", "one")
	s.says("gateway/front-door", "OffloadUnavailable", "workloadPolicy.offload")
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.sees("deployment/front-door", added, "")
	s.allow("workloads", "offload", "true")
	s.await(func(ctx context.Context) error {
		return s.asOperator(ctx, "patch deployment front-door", capabilities)
	})
	s.set("dataplane/"+s.name, `{"spec":{"labels":{"step":"two"}}}`)
	s.sees("deployment/front-door", added, `["BPF","NET_ADMIN"]`)
	s.sees("gateway/front-door", condition("OffloadUnavailable"), "")
}
