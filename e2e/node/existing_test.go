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
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/node"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// existingImage is a second name of stunnerd's image.
const (
	existingImage = node.Images + "/stunnerd:existing"
	imagePath     = ".spec.template.spec.containers[0].image"
)

// existing is an installation of the existing system with the Gateways front-door and side-door in namespace media.
type existing struct {
	site
	helm      string                  // the program for the runbook
	frontDoor netip.Addr              // address of the Service front-door
	peer      netip.AddrPort          // address of the media server
	served    *http.Server            // server of config discovery
	origin    string                  // URL of config discovery
	calls     map[string][]*call.Call // calls by pod
}

func newExisting(t *testing.T, helm string) *existing {
	t.Helper()
	system := testNamespace{t, home}
	system.prepare()
	m := &existing{
		site: site{testNamespace: testNamespace{t, "media"}, secret: "the existing secret"},
		helm: helm, calls: map[string][]*call.Call{},
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
	testNamespace{t, home}.kubectl(existingSettings, "create", "-f", "-")
	m.kubectl(existingInputs, "create", "-f", "-")
	m.apply("testdata/echo.yaml")
	m.peer = m.echo()
	m.write("create", "front-door", "side-door")
	m.frontDoor = m.address("front-door")
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

// serve starts config discovery like the existing operator: plain HTTP without authentication. The URL is always the
// same.
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
	server, ended := &http.Server{Handler: discovery.NewServer(discovery.ServerOptions{})}, make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	m.Cleanup(func() {
		server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			m.Errorf("config discovery of the existing system: %v", err)
		}
	})
	m.served = server
	if m.frontDoor.IsValid() {
		m.publishConfigs()
	}
}

// publishConfigs publishes the configs of both Gateways.
func (m *existing) publishConfigs() {
	m.Helper()
	for _, gateway := range []string{"front-door", "side-door"} {
		c, _, err := config.Parse([]byte(strings.NewReplacer(
			"GATEWAY", gateway, "DOOR", m.frontDoor.String(), "SECRET", string(m.secret), "PEER", m.peer.Addr().String(),
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

// existingObjects are the objects of a Gateway as the existing operator writes them. The fields named "left" stand for
// fields that only the existing operator sets.
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
// config discovery and Dataplane. The values are values of a user.
func (m *existing) installChart() {
	m.Helper()
	root, folder := harnesstest.Root(m.T), m.TempDir()
	files := map[string]string{
		"Chart.yaml":             "{apiVersion: v2, name: stunner, version: 1.2.0}\n",
		"values.yaml":            existingDefaults,
		"templates/objects.yaml": strings.ReplaceAll(existingChart, "DISCOVERY_URL", m.origin),
		"mine.yaml":              existingValues,
	}
	for _, kind := range []string{"dataplanes", "gatewayconfigs", "staticservices", "udproutes"} {
		name := "stunner.l7mp.io_" + kind + ".yaml"
		text, err := os.ReadFile(filepath.Join(root, "charts/stunner-crds/files/stunner", name))
		if err != nil {
			m.Fatal(err)
		}
		// The CRDs of the existing chart have another version and category.
		files["crds/"+name] = strings.NewReplacer(
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
	testNamespace{m.T, home}.shell([]string{"helm3"}, fmt.Sprintf(
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
