package kube

import (
	"bytes"
	"context"
	"io/fs"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/config"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// originals are conformance tests of the Gateway API that need no traffic, with their features. Their code is
// unmodified. In their manifests, HTTP is replaced by a TURN protocol.
var originals = []suite.ConformanceTest{
	tests.GatewayClassObservedGenerationBump,
	tests.GatewayObservedGenerationBump,
	tests.GatewayInvalidParametersRef,
	tests.GatewayInfrastructureMetadata,
	tests.GatewayOptionalAddressValue,
	tests.UDPRouteInvalidBackendRefNonexistent,
	tests.UDPRouteInvalidCrossNamespaceBackendRef,
}

var supported = []features.FeatureName{
	features.SupportGateway, features.SupportGatewayInfrastructure, features.SupportGatewayAddressEmpty,
	features.SupportUDPRoute,
	features.SupportReferenceGrant,
}

// The operator passes the conformance tests of the Gateway API.
func TestGatewayAPIConformance(t *testing.T) {
	t.Parallel()
	s := prepare(t, t.TempDir(), nameOf(t))
	s.startWatching("") // the tests have a namespace of their own
	n := s.tenant(t)
	n.patch(
		&stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: s.name}},
		`{"spec":{"requireReferenceGrants":true}}`,
	)
	n.must(apiextensionsv1.AddToScheme(n.Scheme()))
	clients, err := kubernetes.NewForConfig(control.Admin.Config)
	n.must(err)
	c, err := suite.NewConformanceTestSuite(suite.ConformanceOptions{
		ConfigurableOptions: suite.ConfigurableOptions{
			GatewayClassName: s.name, SupportedFeatures: supported, CleanupTestResources: true,
			DisableParallelTests: true,
			TimeoutConfig: config.TimeoutConfig{
				DefaultPollInterval: 100 * time.Millisecond, LatestObservedGenerationSet: timeout,
			},
		},
		Client: n.Client, Clientset: clients,
	})
	n.must(err)
	// Setup would also set these, but it requires HTTP backends and nodes to run them.
	c.ControllerName = s.controller()
	c.Applier.GatewayClass, c.Applier.ControllerName, c.Applier.ManifestFS = s.name, s.controller(), []fs.FS{
		turn{conformance.Manifests},
	}
	n.must(n.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: suite.InfrastructureNamespace}}))
	go n.provide(suite.InfrastructureNamespace)
	for _, test := range originals {
		t.Run(test.ShortName, func(t *testing.T) {
			defer func() {
				if t.Skipped() {
					t.Error("the test was skipped: add its features")
				}
			}()
			test.Run(t, c)
		})
	}
}

// turn is a file system that replaces protocol HTTP in manifests by a TURN protocol.
type turn struct{ fs.FS }

func (f turn) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(f.FS, name)
	return bytes.ReplaceAll(data, []byte("protocol: HTTP\n"), []byte("protocol: TURN-UDP\n")), err
}

// provide acts as load balancer and kubelet of a namespace until the test ends: Services get addresses, and pods become
// ready.
func (n *tenant) provide(namespace string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-n.Context().Done():
			return
		case <-tick.C:
		}
		n.provideOnce(n.Context(), namespace)
	}
}

// provideOnce does one pass. Conflicts are retried in the next pass.
func (n *tenant) provideOnce(ctx context.Context, namespace string) {
	services, pods := &corev1.ServiceList{}, &corev1.PodList{}
	_ = n.List(ctx, services, client.InNamespace(namespace))
	for _, svc := range services.Items {
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}
			_ = n.Status().Update(ctx, &svc)
		}
	}
	_ = n.List(ctx, pods, client.InNamespace(namespace))
	for _, pod := range pods.Items {
		if len(pod.Status.Conditions) == 0 {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			_ = n.Status().Update(ctx, &pod)
		}
	}
}
