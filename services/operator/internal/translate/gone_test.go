package translate_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// After the deletion of any object of any golden case, no route is accepted by a deleted Gateway, and no status
// contains null, which the API server rejects for a required list.
func TestStatusesNameNoDeletedObject(t *testing.T) {
	emptied := 0
	forEachCase(t, func(t *testing.T, c *testCase) {
		c.writeBack(t, translateAll(c.view(), c.options))
		for _, gone := range c.objects {
			left := slices.DeleteFunc(slices.Clone(c.objects), func(o resource.Object) bool { return o == gone })
			v := c.viewOf(left)
			for _, o := range left {
				u, ok := translate.RefOf(o)
				if !ok {
					continue
				}
				out := u.Translate(v, c.options)
				data, err := json.Marshal(out.Status)
				if err != nil {
					t.Fatal(err)
				}
				if out.Ours && strings.Contains(string(data), "null") {
					t.Errorf("%s goes: the status of %s has a null: %s", identity(gone), u, data)
				}
			}
			for _, ref := range v.Routes() {
				r := translate.Route(v, ref, c.options)
				if r.Ours && len(r.Parents) == 0 {
					emptied++
				}
				for _, p := range r.Parents {
					key, _ := v.Route(ref).GatewayOf(p.ParentRef)
					accepted := slices.ContainsFunc(p.Conditions, func(
						c metav1.Condition,
					) bool {
						return c.Type == condition.Accepted && c.Status == metav1.ConditionTrue
					})
					if string(p.ControllerName) == c.options.ControllerName && v.Gateway(key) == nil && accepted {
						t.Errorf("%s goes: %s is accepted by %s", identity(gone), ref, key)
					}
				}
			}
		}
	})
	if emptied == 0 {
		t.Error("no route has lost its last parent")
	}
}
