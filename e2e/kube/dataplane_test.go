package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Fields of a Dataplane other than the image are applied to the objects. Changes to the objects are reverted, no second
// write is needed, and fields that are removed from the Dataplane are removed from the objects.
func TestDataplaneFieldsReachTheObjects(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.sees("service/front-door", ".spec.type", "LoadBalancer")
	made := s.get("service/front-door", ".metadata.uid")
	s.reshape(`{"replicas":2,"enableNetworkPolicy":true,
		"service":{"loadBalancerSourceRanges":["198.51.100.0/24"],"allocateLoadBalancerNodePorts":false,"ipFamilyPolicy":"PreferDualStack"},
		"podTemplatePatch":{"spec":{"priorityClassName":"media","containers":[{"name":"tap","image":"example.net/tap:1",` + unprivileged + `}]}}}`)
	s.sees("poddisruptionbudget/front-door", ".spec.maxUnavailable", "1")
	s.sees("networkpolicy/front-door", ".spec.policyTypes", `["Ingress","Egress"]`)
	s.sees("service/front-door", ".spec.loadBalancerSourceRanges[0]", "198.51.100.0/24")
	s.sees("service/front-door", ".spec.allocateLoadBalancerNodePorts", "false")
	s.sees("service/front-door", ".spec.ipFamilyPolicy", "PreferDualStack")
	s.sees("deployment/front-door", ".spec.template.spec.containers[*].name", "stunner-daemon tap")
	s.sees("deployment/front-door", ".spec.template.spec.priorityClassName", "media")
	for _, guard := range []string{"networkpolicy", "poddisruptionbudget"} {
		s.remove(guard + "/front-door")
		s.sees(guard+"/front-door", ".metadata.name", "front-door")
	}
	s.stop()
	restarted := time.Now()
	s.start()
	// The new label makes the operator write every object once. Any other write is unneeded.
	s.label("gateway/front-door", "team", "media")
	for _, o := range []string{"poddisruptionbudget", "networkpolicy", "service", "deployment", "configmap"} {
		s.sees(o+"/front-door", ".metadata.labels.team", "media")
	}
	writes := map[string]int{}
	for _, e := range s.writes(restarted) {
		if writes[e.Resource+"/"+e.Name]++; writes[e.Resource+"/"+e.Name] > 1 {
			t.Errorf("unneeded write: %s %s/%s", e.Verb, e.Resource, e.Name)
		}
	}
	s.reshape(`{"replicas":1,"enableNetworkPolicy":false,"service":null,"podTemplatePatch":null}`)
	s.sees("poddisruptionbudget/front-door", ".metadata.name", "")
	s.sees("networkpolicy/front-door", ".metadata.name", "")
	s.sees("service/front-door", ".spec.loadBalancerSourceRanges", "")
	s.sees("deployment/front-door", ".spec.template.spec.containers[*].name", "stunner-daemon")
	if now := s.get("service/front-door", ".metadata.uid"); now != made {
		t.Error("the Service was re-created")
	}
}

// Kubernetes does not allow changes of loadBalancerClass. The Service keeps its class, all other fields are updated,
// and a re-created Service gets the new class.
func TestLoadBalancerClassOfAServiceStays(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.sees("service/front-door", ".metadata.name", "front-door")
	s.sees("service/front-door-tcp", ".metadata.name", "front-door-tcp")
	s.reshape(`{"service":{"loadBalancerClass":"metal.example.net/edge"}}`)
	said := `.status.conditions[?(@.type=="Accepted")].message`
	s.says("gateway/front-door", "Accepted", "spec.service.loadBalancerClass is not what")
	s.label("gateway/front-door", "team", "media")
	s.sees("service/front-door", ".metadata.labels.team", "media")
	s.sees("service/front-door", ".spec.loadBalancerClass", "")
	for _, name := range []string{"front-door", "front-door-tcp"} {
		s.remove("service/" + name)
		s.sees("service/"+name, ".spec.loadBalancerClass", "metal.example.net/edge")
	}
	s.sees("gateway/front-door", said, "")
	s.reshape(`{"service":null}`)
	s.label("gateway/front-door", "team", "calls")
	s.sees("service/front-door", ".metadata.labels.team", "calls")
	s.sees("service/front-door", ".spec.loadBalancerClass", "metal.example.net/edge")
}

// reshape merges a patch into the spec of the Dataplane.
func (s *installation) reshape(spec string) {
	s.Helper()
	s.patch("dataplane/"+s.name, types.MergePatchType, `{"spec":`+spec+`}`)
}

// the standby Secret, from which pods start while the operator is unavailable, holds the published config. It
// follows endpoints and is restored after changes.
// It exists also with the annotation disable-managed-dataplane, and it never replaces a Secret of a user.
func TestStandbySecretHasThePublishedConfig(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	standby := func() config.Config {
		data, err := base64.StdEncoding.DecodeString(s.get("secret/front-door-standby", `.data.stunnerd\.conf\.gz`))
		s.must(err)
		if len(data) == 0 {
			return config.Config{}
		}
		c, _, err := config.Unpack(data)
		s.must(err)
		return c
	}
	isPublished := func(context.Context) error {
		if is, want := standby().Revision(), s.config().Revision(); is != want {
			return fmt.Errorf("the Secret has config %s, published is %s", is, want)
		}
		return nil
	}
	s.sees("secret/front-door-standby", ".type", "stunner.l7mp.io/standby-config")
	s.await(isPublished)
	if c := standby(); c.Auth.Credentials[config.KeySecret] != marker {
		t.Errorf("the Secret has no credentials: %v", c.Auth)
	}
	s.sees("secret/front-door-standby", `.metadata.ownerReferences[0].kind`, "Gateway")

	before := s.config().Revision()
	s.apply(s.own(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-late, namespace: meet, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.77]}]
`))
	s.await(func(context.Context) error {
		if s.config().Revision() == before {
			return errors.New("the endpoint is not published")
		}
		return nil
	})
	if isPublished(s.Context()) == nil { // endpoint updates of the Secret are debounced
		t.Error("a single endpoint change caused a write")
	}
	s.remove("secret/front-door-standby")
	s.await(isPublished)

	s.annotate("gateway/front-door", "stunner.l7mp.io/disable-managed-dataplane", "true")
	s.sees("deployment/front-door", ".metadata.name", "")
	s.remove("secret/front-door-standby")
	s.await(isPublished)
	s.annotate("gateway/front-door", "stunner.l7mp.io/disable-managed-dataplane", "")
	s.sees("deployment/front-door", ".metadata.name", "front-door")

	s.stop()
	s.remove("secret/front-door-standby")
	s.apply("{apiVersion: v1, kind: Secret, metadata: {name: front-door-standby}, stringData: {own: words}}")
	s.start()
	s.await(func(context.Context) error {
		if s.metric("stunner_operator_write_errors_total") == 0 {
			return errors.New("the operator has not tried to write its own Secret")
		}
		return nil
	})
	if got := s.get("secret/front-door-standby", ".data"); got != `{"own":"d29yZHM="}` {
		t.Errorf("the user's Secret contains %s", got)
	}
}

// Kubernetes accepts an environment variable that is listed twice, and the last entry counts. The same holds in a
// Dataplane. Lists whose entries must be unique are rejected by the API server, and the Gateway reports the message.
func TestDataplaneMayNameAVariableTwice(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.reshape(
		`{"env":[{"name":"GOGC","value":"50"},{"name":"GOGC","value":"80"}],"imagePullSecrets":[{"name":"hub"},{"name":"hub"}]}`,
	)
	s.sees("deployment/front-door", `.spec.template.spec.containers[0].env[?(@.name=="GOGC")].value`, "80")
	s.sees("deployment/front-door", `.spec.template.spec.imagePullSecrets[*].name`, "hub")
	const spread = `{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule"}`
	s.reshape(`{"topologySpreadConstraints":[` + spread + `,` + spread + `]}`)
	s.sees("gateway/front-door", condition("Programmed"), "False")
	s.says("gateway/front-door", "Programmed", "the API server refuses Deployment "+s.name+"/front-door")
	s.says("gateway/front-door", "Programmed", "topologySpreadConstraints")
}
