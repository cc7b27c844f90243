package charts

import (
	"strings"
	"testing"
)

// A second release with the controller name of another release is rejected in any namespace. Another controller name is
// accepted, and so is an upgrade of the release itself. Rendering without a cluster does no lookup.
func TestReleases_OfOneControllerNameAreRejected(t *testing.T) {
	const other = `{stunnerGatewayOperator: {controllerName: example.net/second}, defaults: {gatewayClass: {name: second}}}`
	first := release{chart: app, namespace: "first-of-two", set: `stunnerGatewayOperator: {controllerName: example.net/first}`}
	var roles []object
	for _, o := range first.objects(t) {
		if o.GetKind() == "ClusterRole" {
			roles = append(roles, o)
		}
	}
	apply(t, roles)
	for title, c := range map[string]struct {
		release  release
		rejected bool
	}{
		"the release itself":         {release{chart: app, namespace: first.namespace, set: first.set, live: true}, false},
		"a second one":               {release{chart: app, namespace: "second-of-two", set: first.set, live: true}, true},
		"a second one, some objects": {release{chart: app, set: first.set + "\nwatchNamespaces: [stunner-system]", live: true}, true},
		"another controller name":    {release{chart: app, namespace: "second-of-two", set: other, live: true}, false},
		"without a cluster":          {release{chart: app, namespace: "second-of-two", set: first.set}, false},
		"an auth service only": {release{
			chart: app, namespace: "second-of-two", live: true,
			set: `stunnerGatewayOperator: {enabled: false, controllerName: example.net/first}`,
		}, false},
	} {
		_, err := c.release.templates(t)
		told := err != nil && strings.Contains(err.Error(), "stunnerGatewayOperator.controllerName: example.net/first is that") &&
			strings.Contains(err.Error(), "stunner-operator-first-of-two")
		if told != c.rejected || !c.rejected && err != nil {
			t.Errorf("%s: rejected %t: %v", title, c.rejected, err)
		}
	}
}
