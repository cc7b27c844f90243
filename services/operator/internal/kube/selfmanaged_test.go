package kube

import (
	"log/slog"
	"reflect"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

var operatorAccount = []metav1.OwnerReference{
	{APIVersion: "v1", Kind: "ServiceAccount", Name: "stunner-operator", UID: "5d1c"},
}

// The leader generates a shared secret once. A Secret of the user is not changed, and a deleted Secret is recreated
// with its previous content.
func TestTheLeaderGeneratesCredentials(t *testing.T) {
	r := newReplicas(t)
	add := func(name string) *credentials {
		c := newCredentials(
			types.NamespacedName{Namespace: "stunner-system", Name: name}, r.client, newMeters(),
			slog.New(slog.DiscardHandler),
		)
		c.owner = operatorAccount
		return c
	}
	stored := func(name string) *corev1.Secret {
		s := &corev1.Secret{}
		if err := r.client.Get(
			t.Context(), client.ObjectKey{Namespace: "stunner-system", Name: name}, s,
		); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return s
	}
	step := func(all ...*credentials) {
		t.Helper()
		for _, c := range all {
			if err := c.step(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	leader, other := add("turn"), add("turn")
	if step(leader, other); stored("turn").Name != "" {
		t.Fatal("a replica that is not the leader has generated")
	}
	leader.leading.Store(true)
	step(leader, other)
	first := stored("turn")
	if first.Annotations[resource.GeneratedSecret] != "true" || len(first.Data["root"]) < 26 ||
		string(first.Data["root"]) == string(first.Data["secret"]) {
		t.Fatalf("generated with annotations %v and a root of %d bytes", first.Annotations, len(first.Data["root"]))
	}
	if string(first.Data["type"]) != "ephemeral" || len(first.Data["secret"]) < 26 ||
		!reflect.DeepEqual(first.OwnerReferences, operatorAccount) {
		t.Fatalf(
			"generated: %d bytes of type %q, owned by %v", len(first.Data["secret"]), first.Data["type"],
			first.OwnerReferences,
		)
	}
	if step(leader, other); stored("turn").ResourceVersion != first.ResourceVersion {
		t.Error("an unchanged Secret is written again")
	}
	if err := r.client.Delete(t.Context(), stored("turn")); err != nil {
		t.Fatal(err)
	}
	leader.leading.Store(false)
	other.leading.Store(true)
	if step(leader, other); !reflect.DeepEqual(stored("turn").Data, first.Data) ||
		!reflect.DeepEqual(stored("turn").Annotations, first.Annotations) {
		t.Error("a deleted Secret is not restored")
	}

	brought := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "stunner-system", Name: "brought"},
		Data:       map[string][]byte{"username": []byte("ada")},
	}
	if err := r.client.Create(t.Context(), brought); err != nil {
		t.Fatal(err)
	}
	late := add("brought")
	late.leading.Store(true)
	step(late)
	// create gets the error AlreadyExists, as if the cache were outdated.
	if err := late.create(t.Context(), &corev1.Secret{ObjectMeta: late.meta(), Data: first.Data}); err != nil {
		t.Error(err)
	}
	if after := stored("brought"); after.ResourceVersion != brought.ResourceVersion || len(after.OwnerReferences) != 0 {
		t.Errorf("a Secret of the user is changed to %v of %v", after.Data, after.OwnerReferences)
	}
	if err := r.client.Delete(t.Context(), stored("brought")); err != nil {
		t.Fatal(err)
	}
	if step(late); stored("brought").Annotations[resource.GeneratedSecret] != "" ||
		string(stored("brought").Data["username"]) != "ada" {
		t.Error("a recreated Secret of the user counts as generated")
	}
}

// The CA is owned by the ServiceAccount, also a CA of an earlier release.
func TestTheCABelongsToTheAccount(t *testing.T) {
	r := newReplicas(t)
	before := r.add()
	before.leading.Store(true)
	told := r.step(before)
	if refs := r.stored().OwnerReferences; len(refs) != 0 {
		t.Fatalf("owned by %v", refs)
	}
	after := r.add()
	after.owner = operatorAccount
	after.leading.Store(true)
	if r.step(after) != told {
		t.Error("another CA is sent")
	}
	shown := &corev1.ConfigMap{ObjectMeta: after.meta()}
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(shown), shown); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{r.stored(), shown} {
		if !reflect.DeepEqual(o.GetOwnerReferences(), operatorAccount) {
			t.Errorf("%T is owned by %v", o, o.GetOwnerReferences())
		}
	}
	version := r.stored().ResourceVersion
	if r.step(after); r.stored().ResourceVersion != version {
		t.Error("an unchanged object is written again")
	}
}

// The API server reports the own ServiceAccount. Another user, and an account of another namespace, owns nothing.
func TestTheAccountOfThisProcess(t *testing.T) {
	for user, want := range map[string][]metav1.OwnerReference{
		accountPrefix + "stunner-system:stunner-operator": operatorAccount,
		accountPrefix + "elsewhere:stunner-operator":      nil,
		"kubernetes-admin": nil,
	} {
		clients := fake.NewClientset()
		clients.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (
			bool, runtime.Object, error,
		) {
			return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
				UserInfo: authenticationv1.UserInfo{Username: user, UID: "5d1c"},
			}}, nil
		})
		if got, err := ownAccount(t.Context(), clients, "stunner-system"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v", user, got, err)
		}
	}
}
