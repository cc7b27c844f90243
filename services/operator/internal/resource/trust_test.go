package resource_test

import (
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// A new bundle affects the translations that have read the old bundle, and those that have found no bundle. An equal
// bundle affects none.
func TestANewBundleAffectsReadersOfTheOldOne(t *testing.T) {
	v, told := resource.NewView(nil), resource.Facts{}
	if bundle := v.Recording(told).TrustBundle(); bundle != "" || len(told) != 1 {
		t.Errorf("bundle %q, %d facts", bundle, len(told))
	}
	var readers resource.Readers[string]
	readers.Record("north", told)
	readers.Record("south", resource.Facts{})
	for _, c := range []struct {
		bundle string
		want   int
	}{{"first", 1}, {"first", 0}, {"second", 1}} {
		concerned := map[string]struct{}{}
		readers.Of(v.Put(&resource.Trust{Bundle: c.bundle}), concerned)
		if _, north := concerned["north"]; len(concerned) != c.want || north != (c.want == 1) ||
			v.TrustBundle() != c.bundle {
			t.Errorf("%s concerns %v, and the view has %s", c.bundle, concerned, v.TrustBundle())
		}
	}
}
