package resource_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

func node(name, providerID string) *corev1.Node {
	return &corev1.Node{ObjectMeta: named("", name), Spec: corev1.NodeSpec{ProviderID: providerID}}
}

// Translations that read the providers of the nodes are repeated only if the list of providers changes. A cloud
// controller sets the provider ID after the Node was created.
func TestProvidersOfNodes(t *testing.T) {
	v := resource.NewView(nil)
	read := resource.Facts{}
	v.Recording(read).NodeProviders()
	if len(read) != 1 {
		t.Fatalf("the lookup depends on %v, want one fact", read)
	}
	for _, step := range []struct {
		put, remove *corev1.Node
		want        []string
		changes     bool
	}{
		{put: node("a", ""), want: nil},
		{put: node("a", "aws:///eu-central-1a/i-1"), want: []string{"aws"}, changes: true},
		{put: node("b", "aws:///eu-central-1b/i-2"), want: []string{"aws"}},
		{put: node("c", "ocid1.instance.oc1.phx.x"), want: []string{"aws", "ocid1"}, changes: true},
		{remove: node("a", ""), want: []string{"aws", "ocid1"}},
		{remove: node("b", ""), want: []string{"ocid1"}, changes: true},
		{remove: node("b", ""), want: []string{"ocid1"}},
		{put: node("c", "hcloud://7"), want: []string{"hcloud"}, changes: true},
		{put: node("c", strings.Repeat("x", 64)), want: nil, changes: true},
	} {
		var changed resource.Facts
		if step.put != nil {
			changed = v.Put(step.put)
		} else {
			changed = v.Delete(step.remove)
		}
		affected := false
		for fact := range changed {
			_, is := read[fact]
			affected = affected || is
		}
		if got := v.NodeProviders(); !slices.Equal(got, step.want) || affected != step.changes {
			t.Errorf("%+v: providers %q, changed %t", step, got, affected)
		}
	}
}

func TestProviderScheme(t *testing.T) {
	for id, want := range map[string]string{
		"": "", "aws:///a/i-1": "aws", "gce://project/zone/vm": "gce", "azure:///subscriptions/x": "azure",
		"digitalocean://1": "digitalocean", "hcloud://1": "hcloud", "openstack:///x": "openstack", "k3s://n": "k3s",
		"ocid1.instance.oc1..x": "ocid1", "aws": "aws", strings.Repeat("x", 64) + "://y": "",
	} {
		if got := resource.ProviderScheme(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
		if again := resource.ProviderScheme(want); again != want {
			t.Errorf("the scheme of %q is %q", want, again)
		}
	}
}
