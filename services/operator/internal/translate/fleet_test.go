package translate_test

import (
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A Gateway is programmed when its dataplanes run what is published, as far as they tell.
func TestDataplanesSayWhetherAGatewayIsProgrammed(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_load_balancer_may_report_ports.txtar"))
	key := c.view().Gateways()[0]
	for name, test := range map[string]struct {
		fleet resource.FleetState
		want  metav1.Condition
	}{
		"nobody reports": {resource.FleetState{}, metav1.Condition{Status: "True", Reason: "Programmed"}},
		"all refuse": {resource.FleetState{Pod: "edge-1", Problem: "port 80: taken", Draining: 1},
			metav1.Condition{Status: "False", Reason: "Invalid", Message: "no dataplane serves all of the config: pod edge-1 says: port 80: taken"}},
		"none runs it": {resource.FleetState{Behind: 2},
			metav1.Condition{Status: "False", Reason: "Pending", Message: "2 pods report, none runs the published config: see their logs"}},
		"one drains": {resource.FleetState{Draining: 1}, metav1.Condition{Status: "True", Reason: "Programmed", Message: "programmed, 1 pod draining"}},
	} {
		v := c.view()
		told := resource.Facts{}
		translate.Gateway(v.Telling(told), key, c.options)
		var readers resource.Readers[string]
		readers.Told("the Gateway", told)
		concerned := map[string]struct{}{}
		readers.Of(v.Put(&resource.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, FleetState: test.fleet}), concerned)
		if len(concerned) != 1 {
			t.Errorf("%s: the Gateway is not translated again", name)
		}
		r := translate.Gateway(v, key, c.options)
		for _, got := range r.Status.Conditions {
			if got.Type == condition.Programmed && (got.Status != test.want.Status || got.Reason != test.want.Reason || got.Message != test.want.Message) {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if r.Keep || r.Config == nil {
			t.Errorf("%s: what dataplanes say has changed the config", name)
		}
	}
}
