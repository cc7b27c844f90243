package translate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// revocation returns a Revocation of a user that was created some seconds after the epoch of the tests, and is in
// force.
func revocation(namespace, user string, created int) *stunnerv1.Revocation {
	at := metav1.NewTime(now.Add(time.Duration(created-3600) * time.Second))
	r := &stunnerv1.Revocation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user, CreationTimestamp: at}}
	r.Spec = stunnerv1.RevocationSpec{User: user, IssuedBefore: &at, Until: new(metav1.NewTime(now.Add(time.Hour)))}
	return r
}

func users(list []credential.Revocation) (names []string) {
	for _, r := range list {
		names = append(names, r.User)
	}
	return names
}

// While the config of a Gateway cannot be replaced, because its Secret or its class is missing, a revocation is added
// to the published config and removed from it. Nothing else in the published config changes.
func TestRevocationReachesAHeldGateway(t *testing.T) {
	for _, file := range []string{
		"testdata/a_missing_secret_keeps_what_is_published.txtar", "testdata/a_gateway_without_a_class_is_left_alone.txtar",
	} {
		c := load(t, file)
		good := load(t, "testdata/a_secret_with_a_shared_secret_signs_credentials.txtar")
		key := types.NamespacedName{Namespace: "turn", Name: "lobby"}
		published := translate.Gateway(resource.NewView(good.objects), key, good.options).Config
		if published == nil {
			t.Fatal("there is no published config")
		}
		v, opt := resource.NewView(c.objects), c.options
		opt.Published = published
		r := translate.Gateway(v, key, opt)
		if r.Decision != translate.Held && r.Decision != translate.Classless || r.Revoked != nil {
			t.Fatalf("%s: %s, revoked %v", file, r.Decision, r.Revoked)
		}
		v.Put(revocation("turn", "ann", 1))
		r = translate.Gateway(v, key, opt)
		if r.Config != nil || r.Revoked == nil || !slices.Equal(users(r.Revoked.Auth.Revocations), []string{"ann"}) {
			t.Fatalf("%s: %s, config %v, revoked %v", file, r.Decision, r.Config, r.Revoked)
		}
		rest := r.Revoked.Clone()
		rest.Auth.Revocations = nil
		if rest.Revision() != published.Revision() || len(published.Auth.Revocations) != 0 {
			t.Errorf("%s: the published config differs in more than the revocations", file)
		}
		opt.Published = r.Revoked
		if again := translate.Gateway(v, key, opt); again.Revoked != nil {
			t.Errorf("%s: the same revocations are published again", file)
		}
		v.Delete(revocation("turn", "ann", 1))
		if r = translate.Gateway(v, key, opt); r.Revoked == nil || len(r.Revoked.Auth.Revocations) != 0 {
			t.Errorf("%s: the revocation is not lifted: %v", file, r.Revoked)
		}
	}
}

// A namespace has room for a number of Revocations and of bytes. The oldest Revocations have room. Newer Revocations
// change nothing that is in force, and do not affect other namespaces. The condition names the limits.
func TestRevocationsHaveABound(t *testing.T) {
	c := load(t, "testdata/a_secret_with_a_shared_secret_signs_credentials.txtar")
	key := types.NamespacedName{Namespace: "turn", Name: "lobby"}
	inForce := func(v *resource.View) []string {
		return users(translate.Gateway(v, key, c.options).Config.Auth.Revocations)
	}
	for name, row := range map[string]struct {
		user func(i int) string
		fit  int
	}{
		"many":  {func(i int) string { return fmt.Sprint("u", 1000+i) }, 1000},
		"long":  {func(i int) string { return fmt.Sprint(1000+i, strings.Repeat("x", 500)) }, 171},
		"quote": {func(i int) string { return fmt.Sprint(1000+i, strings.Repeat("\x01", 500)) }, 32},
	} {
		v := resource.NewView(c.objects)
		for i := range 2 * row.fit {
			v.Put(revocation("turn", row.user(i), i))
		}
		have := inForce(v)
		if len(have) != row.fit || !slices.Contains(have, row.user(0)) || !slices.Contains(have, row.user(row.fit-1)) {
			t.Errorf("%s: %d in force, want the %d oldest", name, len(have), row.fit)
		}
		gateway := translate.Gateway(v, key, c.options)
		if size := len(gateway.Config.Canonical()); size > resource.MaxRevocationBytes+4<<10 {
			t.Errorf("%s: a config of %d bytes", name, size)
		}
		last := revocation("turn", row.user(row.fit), row.fit)
		status := translate.Revocation(v, resource.KeyOf(last), c.options)
		if got := status.Conditions[0]; got.Status != metav1.ConditionFalse || got.Reason != "BudgetExceeded" ||
			!strings.Contains(got.Message, "1000 Revocations with 98304 bytes") {
			t.Errorf("%s: %+v", name, got)
		}
		dependencies := resource.Facts{}
		translate.Gateway(v.Recording(dependencies), key, c.options)
		var readers resource.Readers[string]
		readers.Record("gateway", dependencies)
		affected := map[string]struct{}{}
		readers.Of(v.Put(revocation("turn", "newest", 99_999)), affected)
		readers.Of(v.Put(revocation("rooms", "other", 1)), affected)
		if len(affected) != 0 {
			t.Errorf("%s: a Revocation without room makes the operator translate the Gateway", name)
		}
		if other := v.RevocationHasRoom(types.NamespacedName{Namespace: "rooms", Name: "other"}); !other {
			t.Errorf("%s: another namespace has no room", name)
		}
		readers.Of(v.Delete(revocation("turn", row.user(3), 3)), affected)
		if len(affected) != 1 || !slices.Contains(inForce(v), row.user(row.fit)) {
			t.Errorf("%s: the room that became free was not given to the next one", name)
		}
	}
}

// A Revocation that a dataplane would not accept is left out, so that it cannot hold up the config of its Gateways.
func TestHostileRevocationsDoNotHoldTheConfig(t *testing.T) {
	c := load(t, "testdata/a_secret_with_a_shared_secret_signs_credentials.txtar")
	v, key := resource.NewView(c.objects), types.NamespacedName{Namespace: "turn", Name: "lobby"}
	for i, user := range []string{strings.Repeat("é", 508), "a\xffb", "", "good"} {
		r := revocation("turn", fmt.Sprint("r", i), i)
		r.Spec.User = user
		v.Put(r)
	}
	far := revocation("turn", "far", 9)
	far.Spec.Until = new(metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)))
	far.Spec.IssuedBefore = new(metav1.NewTime(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)))
	v.Put(far)
	r := translate.Gateway(v, key, c.options)
	if r.Decision != translate.Served || !slices.Equal(users(r.Config.Auth.Revocations), []string{"good"}) {
		t.Errorf("%s: %v", r.Decision, r.Config)
	}
}
