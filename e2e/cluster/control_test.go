// Package cluster tests two parts of e2e/internal/cluster from which other suites conclude that something did not
// happen: the audit log, and an API server that does not respond. Kinds, roles, tokens and controllers are tested in
// the suites that use them.
package cluster

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

var kube *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.Main(m, &kube)) }

func TestRelease(t *testing.T) {
	said, err := kube.Kubectl(t.Context(), "version")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Client Version: v1.35.4", "Server Version: v1.35.4"} {
		if !strings.Contains(said, want) {
			t.Errorf("kubectl says %q, want %q in it", said, want)
		}
	}
}

// configMaps returns a client for the ConfigMaps of a namespace, with a User-Agent.
func configMaps(t *testing.T, namespace, agent string) dynamic.ResourceInterface {
	t.Helper()
	config := rest.CopyConfig(kube.Admin.Config)
	config.UserAgent = agent
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace)
}

func settings() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "settings"},
	}}
}

// entries returns the entries of the audit log since a time, for a client with a User-Agent.
func entries(t *testing.T, since time.Time, agent string) []cluster.Entry {
	t.Helper()
	all, err := kube.Audit(since)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e cluster.Entry) bool { return e.Agent != agent })
}

// The audit log has each request as soon as it is answered.
func TestAuditLogHasEachRequest(t *testing.T) {
	since, counted := time.Now(), configMaps(t, "default", "counted")
	var want []cluster.Entry
	did := func(verb string, code int, err error) {
		t.Helper()
		if (err == nil) != (code < 400) {
			t.Fatalf("%s: %v, want code %d", verb, err, code)
		}
		path := "/api/v1/namespaces/default/configmaps"
		if verb != "create" {
			path += "/settings"
		}
		want = append(want, cluster.Entry{
			Verb: verb, User: "admin", Agent: "counted", Resource: "configmaps", Namespace: "default",
			Name: "settings", Code: code, Path: path,
		})
	}
	_, err := counted.Create(t.Context(), settings(), metav1.CreateOptions{})
	did("create", 201, err)
	_, err = counted.Create(t.Context(), settings(), metav1.CreateOptions{})
	did("create", 409, err)
	_, err = counted.Get(t.Context(), "settings", metav1.GetOptions{})
	did("get", 200, err)
	_, err = counted.Patch(
		t.Context(), "settings", types.MergePatchType, []byte(`{"data": {"a": "b"}}`), metav1.PatchOptions{},
	)
	did("patch", 200, err)
	did("delete", 200, counted.Delete(t.Context(), "settings", metav1.DeleteOptions{}))

	got, writes := entries(t, since, "counted"), 0
	for i := range got {
		if got[i].Write() {
			writes++
		}
		got[i].Time = time.Time{}
	}
	if !slices.Equal(got, want) || writes != 4 {
		t.Errorf("%d writes, want 4; entries\n%+v\nwant\n%+v", writes, got, want)
	}
	if later := entries(t, time.Now(), "counted"); len(later) > 0 {
		t.Errorf("entries from now on: %v", later)
	}
}

// A watch is logged once, at its start.
func TestAuditLogHasEachWatchOnce(t *testing.T) {
	since, seconds := time.Now(), int64(1)
	watch, err := configMaps(t, "default", "watcher").Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: &seconds})
	if err != nil {
		t.Fatal(err)
	}
	once := func(when string) {
		if all := entries(t, since, "watcher"); len(all) != 1 || all[0].Verb != "watch" || all[0].Code != 200 {
			t.Errorf("%s: entries %+v, want one watch", when, all)
		}
	}
	once("during the watch")
	for range watch.ResultChan() { // the channel is closed when the response ends
	}
	once("after the watch")
}

// While the API server is paused, requests are not answered. They are answered after Resume.
func TestPausedServerAnswersAfterResume(t *testing.T) {
	maps := configMaps(t, "default", "paused")
	if err := kube.Pause(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err := maps.List(short, metav1.ListOptions{})
	answered := make(chan error)
	go func() {
		_, err := maps.List(t.Context(), metav1.ListOptions{})
		answered <- err
	}()
	if err := kube.Resume(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("request with a short timeout: %v", err)
	}
	if err := <-answered; err != nil {
		t.Errorf("request without a timeout: %v", err)
	}
}
