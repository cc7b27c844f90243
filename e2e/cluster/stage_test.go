// Package cluster tests e2e/internal/cluster, the control plane that other tests use.
package cluster

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// patience is the timeout of operations that take milliseconds on an idle machine.
const patience = time.Minute

var kube *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.Main(m, &kube)) }

// client returns a client with the given access and User-Agent.
func client(t *testing.T, access cluster.Access, agent string) *dynamic.DynamicClient {
	t.Helper()
	config := rest.CopyConfig(access.Config)
	config.UserAgent = agent
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stage is a namespace of the test with an administrator's client.
type stage struct {
	*testing.T
	admin     *dynamic.DynamicClient
	namespace string
}

func newStage(t *testing.T) stage {
	t.Helper()
	s := stage{T: t, admin: client(t, kube.Admin, "stage")}
	made, err := s.admin.Resource(resource("v1", "namespaces")).Create(t.Context(), object(t, `
apiVersion: v1
kind: Namespace
metadata: {generateName: test-}
`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.namespace = made.GetName()
	return s
}

// in returns a client for the resources of a kind in the stage's namespace.
func (s stage) in(version, plural string) dynamic.ResourceInterface {
	return s.admin.Resource(resource(version, plural)).Namespace(s.namespace)
}

// create creates an object in the stage's namespace.
func (s stage) create(plural, manifest string) *unstructured.Unstructured {
	s.Helper()
	o := object(s.T, manifest)
	made, err := s.in(o.GetAPIVersion(), plural).Create(s.Context(), o, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return made
}

// await waits until cond holds.
func (s stage) await(cond func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := bed.Until(ctx, cond); err != nil {
		s.Fatal(err)
	}
}

func resource(version, plural string) schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		panic(err)
	}
	return gv.WithResource(plural)
}

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.TrimSpace(manifest)), &o.Object); err != nil {
		t.Fatalf("read manifest: %v\n%s", err, manifest)
	}
	return o
}

// at returns the field of an object at a path, or nil.
func at(o *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return v
}
