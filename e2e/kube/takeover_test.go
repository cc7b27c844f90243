package kube

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// former are the objects of a Gateway as the operator of the existing system creates them, with update requests. The
// fields named "left" stand for fields that the Gateway does not require.
const former = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: front-door
  namespace: NAMESPACE
  labels: {stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: NAMESPACE, left: over}
  annotations: {stunner.l7mp.io/related-gateway-name: NAMESPACE/front-door, left: over}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: front-door, uid: UID}]
spec:
  replicas: 3
  selector:
    matchExpressions:
      - {key: app, operator: In, values: [stunner]}
      - {key: stunner.l7mp.io/related-gateway-name, operator: In, values: [front-door]}
      - {key: stunner.l7mp.io/related-gateway-namespace, operator: In, values: [NAMESPACE]}
  template:
    metadata:
      labels: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: NAMESPACE, left: over}
    spec:
      hostNetwork: true
      tolerations: [{key: left, operator: Exists}]
      containers:
        - name: stunner-daemon
          image: l7mp/stunnerd:latest
          command: [stunnerd]
          args: [-w, --udp-thread-num=16]
          env:
            - {name: LEFT, value: over}
            - {name: STUNNER_CONFIG_ORIGIN, value: "http://192.0.2.99:13478"}
          resources: {limits: {memory: 20M}}
---
apiVersion: v1
kind: Service
metadata:
  name: front-door
  namespace: NAMESPACE
  labels: {stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: NAMESPACE}
  annotations: {stunner.l7mp.io/related-gateway-name: NAMESPACE/front-door, left: over}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: front-door, uid: UID}]
spec:
  type: LoadBalancer
  sessionAffinity: ClientIP
  selector: {app: stunner, stunner.l7mp.io/related-gateway-name: front-door, stunner.l7mp.io/related-gateway-namespace: NAMESPACE}
  ports:
    - {name: udp, port: 3478, protocol: UDP}
    - {name: left, port: 9, protocol: UDP}
`

// newFormer returns an installation with the objects that the former operator left, and without an operator.
func newFormer(t *testing.T) *installation {
	s := prepare(t, t.TempDir(), nameOf(t))
	s.kubectl("create", "--field-manager=manager", "-f", s.file(s.former()))
	s.setStatus("service/front-door", `{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}`)
	for _, object := range []string{"deployment", "service"} {
		s.annotate(object+"/front-door", "by", "the-user")
	}
	s.patch("service/front-door", types.JSONPatchType, `[{"op":"add","path":"/metadata/ownerReferences/-","value":{"apiVersion":"v1","kind":"Namespace","name":"`+s.name+`","uid":"`+s.get("namespace/"+s.name, ".metadata.uid")+`"}}]`)
	return s
}

// The operator takes over the objects of the existing system's operator. It removes fields that the former operator has
// set and that the Gateway does not require, and keeps fields of users and of Kubernetes. The pods are replaced once,
// after the Gateway permits it.
func TestObjectsOfTheFormerOperatorAreTakenOver(t *testing.T) {
	t.Parallel()
	s := newFormer(t)
	kept := func() string {
		return s.get("service/front-door", ".spec.clusterIP") + " " +
			s.get("service/front-door", `.spec.ports[?(@.name=="udp")].nodePort`)
	}
	before, pods := kept(), s.get("deployment/front-door", ".spec.template")
	s.start()

	s.sees("service/front-door", ".metadata.annotations.left", "")
	s.sees("service/front-door", `.spec.ports[*].name`, "udp")
	s.sees("service/front-door", ".metadata.annotations.by", "the-user")
	s.sees("service/front-door", ".status.loadBalancer.ingress[0].ip", "192.0.2.7")
	s.sees("service/front-door", `.metadata.ownerReferences[?(@.kind=="Namespace")].name`, s.name)
	s.sees("service/front-door", `.metadata.ownerReferences[?(@.kind=="Gateway")].controller`, "true")
	if now := kept(); now != before {
		t.Errorf("cluster IP and node port were %s and are %s", before, now)
	}
	s.sees("gateway/front-door", condition("Programmed"), "False")
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].message`, "Deployment "+s.name+
		"/front-door was created by another operator, so its pods continue to run the config from there: set annotation "+
		"stunner.l7mp.io/take-over to true to replace them; their calls drain")
	if c := s.config(); len(c.Listeners) != 2 || c.Listeners[0].PublicAddress != "192.0.2.7" {
		t.Errorf("config %+v, want both listeners and the address", c)
	}
	s.mark("waiting") // a write that does not include the Deployment
	s.sees("service/front-door", ".metadata.labels.mark", "waiting")
	if now := s.get("deployment/front-door", ".spec.template"); now != pods {
		t.Errorf("the pods were replaced without permission: the template was\n%s\nand is\n%s", pods, now)
	}

	s.annotate("gateway/front-door", "stunner.l7mp.io/take-over", "true")
	s.sees("deployment/front-door", ".spec.template.spec.containers[0].env[?(@.name==\"LEFT\")].value", "")
	for path, want := range map[string]string{
		".metadata.annotations.left":                                "",
		".metadata.labels.left":                                     "",
		".metadata.annotations.by":                                  "the-user",
		".spec.template.metadata.labels.left":                       "",
		".spec.template.spec.hostNetwork":                           "",
		".spec.template.spec.tolerations":                           "",
		".spec.template.spec.containers[0].resources.limits.memory": "",
		".spec.replicas":                                            "3",
		".metadata.generation":                                      "3", // 2 after annotate, 3 after one replacement
	} {
		if got := s.get("deployment/front-door", path); got != want {
			t.Errorf("%s of the Deployment is %q, want %q", path, got, want)
		}
	}
	for _, object := range []string{"deployment", "service"} {
		if managers := s.managers(object); slices.Contains(managers, "manager/Update") {
			t.Errorf("fields of the %s belong to %q", object, managers)
		}
	}
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].reason`, "AddressNotAssigned")

	// After a rollback, the former operator writes the Deployment again, and is replaced once more.
	s.stop()
	s.annotate("gateway/front-door", "stunner.l7mp.io/take-over", "")
	deployment, _, _ := strings.Cut(s.former(), "\n---\n")
	s.kubectl("replace", "--field-manager=manager", "-f", s.file(deployment))
	s.start()
	s.sees("gateway/front-door", `.status.conditions[?(@.type=="Programmed")].reason`, "Pending")
	if s.get("deployment/front-door", ".spec.template.spec.hostNetwork") != "true" {
		t.Error("the pods were replaced without permission after the roll back")
	}
	s.annotate("gateway/front-door", "stunner.l7mp.io/take-over", "true")
	s.sees("deployment/front-door", ".spec.template.spec.hostNetwork", "")
	s.sees("deployment/front-door", ".spec.template.metadata.labels.left", "")
	s.sees("deployment/front-door", ".spec.template.spec.tolerations", "")
}

// former returns the objects of the former operator.
func (s *installation) former() string {
	s.Helper()
	return strings.NewReplacer("NAMESPACE", s.name, "UID", s.get("gateway/front-door", ".metadata.uid")).Replace(former)
}

// managers returns the field managers of an object as NAME/OPERATION.
func (s *installation) managers(object string) (all []string) {
	s.Helper()
	var o metav1.PartialObjectMetadata
	text := s.kubectl("get", object, "front-door", "-n", s.name, "-o", "json", "--show-managed-fields")
	s.must(json.Unmarshal([]byte(text), &o))
	for _, m := range o.ManagedFields {
		all = append(all, m.Manager+"/"+string(m.Operation))
	}
	return all
}
