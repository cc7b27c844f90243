//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/node"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// runbook is the page whose commands TestMigration runs.
const runbook = "docs/migration.md"

// TestMigration runs the commands of the runbook in their order, forward and back, on an installation of the existing
// system, during calls. A call may lose nothing, and the Services keep their addresses.
//
// The existing system is imitated: its chart has the same names, and its objects the same fields and field managers.
// Its operator is an idle program, its config discovery is in this process, and its dataplane is stunnerd with the
// arguments and the environment of the existing dataplane.
func TestMigration(t *testing.T) {
	for _, helm := range []string{"helm", "helm3"} {
		t.Run(helm, func(t *testing.T) { migrate(t, helm) })
	}
}

func migrate(t *testing.T, helm string) {
	m := newExisting(t, helm)
	addresses := m.addresses()
	first := m.pod("")
	m.dial(first)
	auth := m.pollAuth()

	m.step("1 before", block{runbook, "helm get all"}, block{runbook, stopExisting},
		block{runbook, "kubectl label --overwrite crd"})
	m.step("roll back after 1", block{runbook, startExisting})
	m.step("1 again", block{runbook, stopExisting})
	m.served.Close() // with the operator

	generation := m.read("deployment/front-door", ".metadata.generation")
	m.step("2 take over", block{runbook, "helm get values"})
	m.waits()
	m.equal("generation of the Deployment", m.read("deployment/front-door", ".metadata.generation"), generation)
	m.equal("pod", m.pod("").Name, first.Name)
	m.equal("annotation of the existing operator", m.read("service/front-door", ".metadata.annotations.left"), "")
	m.equal("annotation of a user", m.read("service/front-door", ".metadata.annotations.by"), "the-user")
	m.equal("addresses", m.addresses(), addresses)
	auth.stop(m)
	m.dial(first)

	m.back("roll back after 2")
	m.step("1 again", block{runbook, stopExisting})
	m.served.Close()
	m.step("2 again", block{runbook, "helm get values"})
	m.waits()
	m.equal("pod", m.pod("").Name, first.Name)
	m.equal("addresses", m.addresses(), addresses)

	m.step("3 serve the existing dataplanes", block{runbook, "kubectl set env"})
	second := m.pod(first.Name)
	m.equal("image", second.Spec.Containers[0].Image, existingImage)
	m.dial(second)
	if said := m.run(block{runbook, "kubectl logs"}); !strings.Contains(said, "media/"+second.Name) {
		t.Errorf("the log does not name pod %s:\n%s", second.Name, said)
	}

	m.step("4 roll", block{runbook, "kubectl annotate gateway front-door"})
	third := m.pod(second.Name)
	if image := third.Spec.Containers[0].Image; image == existingImage {
		t.Errorf("the image of the new pod is %s", image)
	}
	m.dial(third)
	for _, path := range []string{
		".metadata.annotations.left", ".metadata.labels.left", ".spec.template.metadata.labels.left",
		`.spec.template.spec.containers[0].env[?(@.name=="LEFT")].value`,
	} {
		m.equal(path+" of the Deployment", m.read("deployment/front-door", path), "")
	}
	m.equal("image of side-door", m.read("deployment/side-door", imagePath), existingImage)
	m.step("4 roll the class", block{runbook, "kubectl patch gatewayconfig"})
	m.equal("image of side-door", m.read("deployment/side-door", imagePath), third.Spec.Containers[0].Image)
	m.equal("addresses", m.addresses(), addresses)
	m.end(first)

	m.step("5 check", block{runbook, "kubectl get gateways --all-namespaces\n"}, block{runbook, "kubectl logs"})
	m.step("6 close", block{runbook, "helm upgrade stunner oci"})
	m.equal("pod", m.pod(second.Name).Name, third.Name)
	m.refusesOthers()
	m.end(second)

	m.back("roll back after 6")
	fourth := m.pod(third.Name)
	m.equal("image", fourth.Spec.Containers[0].Image, existingImage)
	m.dial(fourth)
	m.equal("addresses", m.addresses(), addresses)
	m.end(third)
	m.end(fourth)
}

// The beginnings of blocks of commands.
const (
	scaleExisting = "kubectl scale deployment stunner-gateway-operator-controller-manager --namespace stunner-system"
	stopExisting  = scaleExisting + " --replicas=0"
	startExisting = scaleExisting + " --replicas=1"
)

// back rolls back, and writes the objects of the Gateways as the existing operator does at its start.
func (m *existing) back(name string) {
	m.Helper()
	m.serve() // for the auth service
	m.step(name, block{runbook, "kubectl scale deployment stunner-operator"})
	m.write("replace", "front-door", "side-door")
}

// waits waits until both Gateways wait for permission to replace their pods.
func (m *existing) waits() {
	m.Helper()
	m.until("the Gateways wait for permission", func(context.Context) error {
		said := m.run(block{runbook, "kubectl get gateways --all-namespaces --output"})
		if strings.Count(said, "created by another operator") != 2 {
			return errors.New(said)
		}
		return nil
	})
}

// existingImage is a second name of stunnerd's image.
const (
	existingImage = node.Images + "/stunnerd:existing"
	imagePath     = ".spec.template.spec.containers[0].image"
)

// existing is an installation of the existing system with the Gateways front-door and side-door in namespace media.
type existing struct {
	site
	helm   string                  // the program for the runbook
	door   netip.Addr              // of the Service front-door
	peer   netip.AddrPort          // of the media server
	served *http.Server            // config discovery
	origin string                  // its URL
	calls  map[string][]*call.Call // by pod
}

func newExisting(t *testing.T, helm string) *existing {
	t.Helper()
	system := place{t, home}
	system.prepare()
	m := &existing{
		site: site{place: place{t, "media"}, secret: "the existing secret"}, helm: helm, calls: map[string][]*call.Call{},
	}
	t.Cleanup(func() {
		if t.Failed() {
			m.explain()
		}
	})
	if err := cluster.Tag(t.Context(), node.Images+"/stunnerd:0.1.0", existingImage); err != nil {
		t.Fatal(err)
	}
	m.kubectl("", "create", "namespace", m.namespace)
	m.serve()
	m.installChart()
	place{t, home}.kubectl(existingSettings, "create", "-f", "-")
	m.kubectl(existingInputs, "create", "-f", "-")
	m.apply("testdata/echo.yaml")
	m.peer = m.echo()
	m.write("create", "front-door", "side-door")
	m.door = m.address("front-door")
	for _, object := range []string{"deployment", "service"} {
		m.kubectl("", "annotate", object, "front-door", "by=the-user")
	}
	m.kubectl(`{"status":{"conditions":[{"type":"Programmed","status":"True","reason":"Programmed","message":"",
		"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "patch", "gateway", "front-door", "--subresource=status",
		"--type=merge", "--field-manager=manager", "--patch-file=/dev/stdin")
	m.publishConfigs()
	m.until("the existing dataplanes are ready", func(context.Context) error {
		if all := m.read("deployment", ".status.readyReplicas"); strings.Count(all, "1") < 3 {
			return errors.New(all)
		}
		return nil
	})
	return m
}

// serve starts config discovery as the existing operator has it: plain HTTP without authentication. The URL is the same
// each time.
func (m *existing) serve() {
	m.Helper()
	at := strings.TrimPrefix(m.origin, "http://")
	if at == "" {
		at = netip.AddrPortFrom(clientIP, 0).String()
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		m.Fatal(err)
	}
	m.origin = "http://" + listener.Addr().String()
	m.served = &http.Server{Handler: discovery.NewServer(discovery.ServerOptions{})}
	m.Cleanup(func() { m.served.Close() })
	go m.served.Serve(listener) //nolint:errcheck // it returns when the server is closed
	if m.door.IsValid() {
		m.publishConfigs()
	}
}

// publishConfigs publishes the configs of both Gateways.
func (m *existing) publishConfigs() {
	m.Helper()
	for _, gateway := range []string{"front-door", "side-door"} {
		c, _, err := config.Parse([]byte(strings.NewReplacer(
			"GATEWAY", gateway, "DOOR", m.door.String(), "SECRET", string(m.secret), "PEER", m.peer.Addr().String(),
		).Replace(existingConfig)))
		if err != nil {
			m.Fatal(err)
		}
		m.served.Handler.(*discovery.Server).Publish(c)
	}
}

const existingConfig = `{"version":"v1","admin":{"name":"media/GATEWAY","loglevel":"all:INFO"},
"auth":{"type":"ephemeral","realm":"stunner.l7mp.io","credentials":{"secret":"SECRET"}},
"listeners":[
  {"name":"media/GATEWAY/udp","protocol":"TURN-UDP","public_address":"DOOR","public_port":3478,"address":"$STUNNER_ADDR","port":3478,"routes":["media/to-echo"]},
  {"name":"media/GATEWAY/tcp","protocol":"TURN-TCP","public_address":"DOOR","public_port":3478,"address":"$STUNNER_ADDR","port":3478,"routes":["media/to-echo"]}],
"clusters":[{"name":"media/to-echo","type":"STATIC","protocol":"udp","endpoints":["PEER"]}]}`

// existingSettings and existingInputs are the objects that users of the existing system write.
const existingSettings = `
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: stunner-gatewayconfig}
spec: {realm: stunner.l7mp.io, authType: ephemeral, sharedSecret: the existing secret}
`

const existingInputs = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: stunner-gatewayclass}
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: stunner-gatewayconfig, namespace: stunner-system}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: to-echo, namespace: media}
spec:
  parentRefs: [{name: front-door}, {name: side-door}]
  rules: [{backendRefs: [{name: echo, namespace: media}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door, namespace: media, annotations: {stunner.l7mp.io/enable-mixed-protocol-lb: "true"}}
spec:
  gatewayClassName: stunner-gatewayclass
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}, {name: tcp, port: 3478, protocol: TURN-TCP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: side-door, namespace: media, annotations: {stunner.l7mp.io/enable-mixed-protocol-lb: "true"}}
spec:
  gatewayClassName: stunner-gatewayclass
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}, {name: tcp, port: 3478, protocol: TURN-TCP}]
`

// write writes the objects of Gateways as the existing operator does, with requests of field manager "manager".
func (m *existing) write(verb string, gateways ...string) {
	m.Helper()
	for _, gateway := range gateways {
		text := strings.NewReplacer("GATEWAY", gateway, "DISCOVERY_URL", m.origin, "IMAGE", existingImage, "UID",
			m.read("gateway/"+gateway, ".metadata.uid")).Replace(existingObjects)
		m.kubectl(text, verb, "--field-manager=manager", "-f", "-")
	}
}

// existingObjects are the objects of a Gateway as the existing operator writes them. It leaves the label, the variable
// and the annotations with the name left.
const existingObjects = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: GATEWAY
  namespace: media
  labels: {stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media, left: over}
  annotations: {stunner.l7mp.io/related-gateway-name: media/GATEWAY, left: over}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: GATEWAY, uid: UID}]
spec:
  replicas: 1
  selector:
    matchExpressions:
      - {key: app, operator: In, values: [stunner]}
      - {key: stunner.l7mp.io/related-gateway-name, operator: In, values: [GATEWAY]}
      - {key: stunner.l7mp.io/related-gateway-namespace, operator: In, values: [media]}
  template:
    metadata:
      labels: {app: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media, left: over}
    spec: # of pods
      terminationGracePeriodSeconds: 3600
      containers:
        - name: stunner-daemon
          image: IMAGE
          imagePullPolicy: IfNotPresent
          command: [stunnerd]
          args: [-w, --udp-thread-num=16]
          env:
            - {name: LEFT, value: over}
            - {name: STUNNER_CONFIG_ORIGIN, value: DISCOVERY_URL}
            - {name: STUNNER_NAME, value: GATEWAY}
            - {name: STUNNER_NAMESPACE, value: media}
            - {name: STUNNER_ADDR, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          resources: {requests: {cpu: 10m}}
          livenessProbe: {httpGet: {path: /live, port: 8086}, periodSeconds: 15, timeoutSeconds: 1}
          readinessProbe: {httpGet: {path: /ready, port: 8086}, periodSeconds: 1, timeoutSeconds: 1}
---
apiVersion: v1
kind: Service
metadata:
  name: GATEWAY
  namespace: media
  labels: {stunner.l7mp.io/owned-by: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media}
  annotations: {stunner.l7mp.io/related-gateway-name: media/GATEWAY, left: over}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: GATEWAY, uid: UID}]
spec:
  type: LoadBalancer
  sessionAffinity: ClientIP
  selector: {app: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media}
  ports:
    - {name: udp, port: 3478, protocol: UDP}
    - {name: tcp, port: 3478, protocol: TCP}
`

// installChart installs a chart with the objects of the existing chart: CRDs without an owner, operator, auth service,
// config discovery and Dataplane. The values are those of a user.
func (m *existing) installChart() {
	m.Helper()
	root, folder := bedtest.Root(m.T), m.TempDir()
	files := map[string]string{
		"Chart.yaml":             "{apiVersion: v2, name: stunner, version: 1.2.0}\n",
		"values.yaml":            existingDefaults,
		"templates/objects.yaml": strings.ReplaceAll(existingChart, "DISCOVERY_URL", m.origin),
		"mine.yaml":              existingValues,
	}
	crds, err := filepath.Glob(filepath.Join(root, "charts/stunner-crds/files/stunner/*.yaml"))
	if err != nil || len(crds) != 4 {
		m.Fatal(len(crds), err)
	}
	for _, crd := range crds {
		text, err := os.ReadFile(crd)
		if err != nil {
			m.Fatal(err)
		}
		// Those of the existing chart differ from these.
		files["crds/"+filepath.Base(crd)] = strings.NewReplacer(
			"version: v0.23.0", "version: v0.14.0", "    - stunner\n", "    - gateways\n",
		).Replace(string(text))
	}
	for name, text := range files {
		name = filepath.Join(folder, name)
		if err := errors.Join(
			os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600),
		); err != nil {
			m.Fatal(err)
		}
	}
	place{m.T, home}.shell([]string{"helm3"}, fmt.Sprintf(
		`kubectl apply --server-side --kustomize %s/charts/stunner-crds/files/gateway-api
helm install stunner %s --namespace stunner-system --values %[2]s/mine.yaml --wait`, root, folder,
	))
}

const existingDefaults = `
stunnerGatewayOperator:
  dataplane:
    spec:
      image: {name: ` + node.Images + `/stunnerd, tag: existing, pullPolicy: IfNotPresent}
      replicas: 1
      command: [stunnerd]
      args: [-w, --udp-thread-num=16]
      terminationGracePeriodSeconds: 3600
`

const existingValues = `
standardCrds: {enabled: true}
logging: {operator: {level: debug}}
stunnerGatewayOperator: {dataplane: {spec: {resources: {requests: {cpu: 10m}}}}}
`

const existingChart = `
apiVersion: apps/v1
kind: Deployment
metadata:
  name: stunner-gateway-operator-controller-manager
  namespace: {{ .Release.Namespace }}
spec:
  replicas: 1
  selector: {matchLabels: {control-plane: stunner-gateway-operator-controller-manager}}
  template:
    metadata:
      labels: {control-plane: stunner-gateway-operator-controller-manager, stunner.l7mp.io/config-discovery-service: enabled}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: manager
          image: ` + node.Images + `/pause:e2e
          imagePullPolicy: IfNotPresent
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata:
  name: stunner-config-discovery
  namespace: {{ .Release.Namespace }}
  labels: {stunner.l7mp.io/config-discovery-service: "true"}
spec:
  selector: {stunner.l7mp.io/config-discovery-service: enabled}
  ports: [{name: cds, port: 13478, protocol: TCP}]
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: stunner-auth
  namespace: {{ .Release.Namespace }}
  labels: {app: stunner-auth}
spec:
  replicas: 1
  selector: {matchLabels: {app: stunner-auth}}
  template:
    metadata: {labels: {app: stunner-auth}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: stunner-auth-server
          image: ` + node.Images + `/auth:0.1.0
          args: [--port=8088, --config=DISCOVERY_URL, "--gateways=*/*"]
          readinessProbe: {httpGet: {path: /ready, port: 8086}, periodSeconds: 1}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata:
  name: stunner-auth
  namespace: {{ .Release.Namespace }}
  labels: {app: stunner-auth}
spec:
  selector: {app: stunner-auth}
  ports: [{port: 8088, protocol: TCP}]
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: default}
spec:
  {{- $spec := deepCopy .Values.stunnerGatewayOperator.dataplane.spec }}
  {{- $_ := set $spec "image" (printf "%s:%s" $spec.image.name $spec.image.tag) }}
  {{- toYaml $spec | nindent 2 }}
`

// step runs blocks of the runbook, and checks that all calls continue.
func (m *existing) step(name string, blocks ...block) {
	m.Helper()
	begun := time.Now()
	place{m.T, home}.follow([]string{m.helm}, blocks...)
	var all []*call.Call
	for _, calls := range m.calls {
		all = append(all, calls...)
	}
	m.goOn(name, all...)
	m.Logf("STEP %s: %s, %d calls continue", name, since(begun), len(all))
}

// run runs a block of the runbook that changes nothing.
func (m *existing) run(b block) string {
	m.Helper()
	return place{m.T, home}.follow(nil, b)
}

// read returns a field of an object of the namespace.
func (m *existing) read(object, path string) string {
	m.Helper()
	if !strings.Contains(object, "/") {
		path = ".items[*]" + path
	}
	return m.kubectl("", "get", object, "--output=jsonpath={"+path+"}")
}

// equal checks a value.
func (m *existing) equal(what, got, want string) {
	m.Helper()
	if got != want {
		m.Errorf("%s: %q, want %q", what, got, want)
	}
}

// addresses returns the addresses and node ports of the Services of both Gateways.
func (m *existing) addresses() (all string) {
	m.Helper()
	for _, gateway := range []string{"front-door", "side-door"} {
		m.address(gateway)
		for _, path := range []string{
			".spec.clusterIP", ".spec.ports[*].nodePort", ".status.loadBalancer.ingress[*].ip",
		} {
			all += m.read("service/"+gateway, path) + " "
		}
	}
	return all
}

// pod returns the pod of front-door that serves new calls, other than a given one.
func (m *existing) pod(other string) (pod corev1.Pod) {
	m.Helper()
	m.until("a pod serves new calls", func(context.Context) (err error) {
		pod, err = m.serving(other)
		return err
	})
	return pod
}

// dial makes a call by each transport that a pod relays.
func (m *existing) dial(pod corev1.Pod) {
	m.Helper()
	for _, network := range []call.Network{call.UDP, call.TCP} {
		d := door{network, netip.AddrPortFrom(m.door, 3478)}
		m.calls[pod.Name] = append(m.calls[pod.Name], m.dialTo(pod, d, m.peer))
	}
}

// end ends the calls of a pod, which must have lost nothing. A terminating pod then exits.
func (m *existing) end(pod corev1.Pod) {
	m.Helper()
	m.hangUp(m.calls[pod.Name]...)
	delete(m.calls, pod.Name)
	if slices.ContainsFunc(m.all(), func(p corev1.Pod) bool {
		return p.Name == pod.Name && p.DeletionTimestamp != nil
	}) {
		m.awaitExit(pod.Name)
	}
}

// refusesOthers: a pod in the form of the existing system does not get a config any more.
func (m *existing) refusesOthers() {
	m.Helper()
	url := "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478"
	_, rest, _ := strings.Cut(existingObjects, "    spec: # of pods\n")
	spec, _, _ := strings.Cut(rest, "---\n")
	m.kubectl(strings.NewReplacer("GATEWAY", "front-door", "DISCOVERY_URL", url, "IMAGE", existingImage).Replace(`
apiVersion: v1
kind: Pod
metadata:
  name: late
  labels: {app: stunner, stunner.l7mp.io/related-gateway-name: GATEWAY, stunner.l7mp.io/related-gateway-namespace: media}
spec:
`+spec), "create", "-f", "-")
	m.wait("jsonpath={.status.phase}=Running", "pod/late")
	time.Sleep(10 * time.Second) // a pod with access is ready after one second
	if ready := m.read("pod/late", `.status.conditions[?(@.type=="Ready")].status`); ready != "False" {
		m.Errorf("a pod without a token is ready: %q", ready)
	}
	m.kubectl("", "delete", "pod/late", "--grace-period=0", "--force")
	service := place{m.T, home}.kubectl(
		"", "get", "service", "stunner-config-discovery", "--output=jsonpath={.spec.clusterIP}",
	)
	if code, body := m.get("http://"+service+":13478/api/v1/configs", ""); code == http.StatusOK {
		m.Errorf("config discovery answers plain HTTP: %s", body)
	}
}

// poller requests credentials from the auth service continuously.
type poller struct {
	answers, failures atomic.Int64
	last              atomic.Value
	end               context.CancelFunc
	done              chan struct{}
}

func (m *existing) pollAuth() *poller {
	m.Helper()
	url := fmt.Sprintf("http://%s:8088/ice?service=turn&namespace=media&gateway=front-door", m.place.publish())
	m.until("the auth service responds", bed.Answers(url, http.StatusOK))
	ctx, end := context.WithCancel(m.Context())
	p := &poller{end: end, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			code, body, err := bed.Get(ctx, url)
			switch {
			case ctx.Err() != nil:
			case err != nil || code != http.StatusOK:
				p.failures.Add(1)
				p.last.Store(fmt.Sprintf("status %d, error %v: %s", code, err, body))
			default:
				p.answers.Add(1)
			}
		}
	}()
	return p
}

// stop ends the requests, which must all have been answered.
func (p *poller) stop(m *existing) {
	m.Helper()
	p.end()
	<-p.done
	m.Logf("auth service: %d requests answered, %d failed", p.answers.Load(), p.failures.Load())
	if p.failures.Load() > 0 {
		m.Errorf("requests to the auth service failed, the last with %v", p.last.Load())
	}
}
