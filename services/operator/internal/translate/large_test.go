package translate_test

import (
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// What is too large for a dataplane to read is not published, and the Gateway says so. Whoever follows all configs over one stream would lose it
// again and again, and with it the configs that come after.
func TestAConfigThatNobodyCanReadIsNotPublished(t *testing.T) {
	w := newTown(1)
	s := townSlice(0, 0).(*discoveryv1.EndpointSlice)
	s.AddressType, s.Endpoints = discoveryv1.AddressTypeIPv6, nil
	for e := range 90_000 {
		address := fmt.Sprintf("2001:db8:1111:2222:3333:4444:%x:%x", 0x1000+e>>12, 0x1000+e&0xfff)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	w.view.Put(s)
	gateway := townGateway(0, 0)
	u, _ := translate.UnitOf(gateway)
	r := w.translate(u).Gateway
	if r.Config != nil {
		text := r.Config.Canonical()
		_, _, err := config.Parse(text)
		t.Fatalf("a config of %d bytes is to be published: %v", len(text), err)
	}
	if status := fmt.Sprintf("%+v", r.Status); !r.Keep || !strings.Contains(status, fmt.Sprint(config.MaxDocument)) {
		t.Errorf("keep %t, status %s", r.Keep, status)
	}
}
