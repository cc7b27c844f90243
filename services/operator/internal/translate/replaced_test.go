package translate_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

// A held listener takes no port from a valid listener. The test combines every state of listener w, which was
// published, with every protocol, port and port in the pod of another listener, which is new or was published too. Each
// listener that a Gateway without a published config would serve is served, with the same protocol, ports, certificate
// and conditions. The held listener stays as it was published, unless a valid listener has its port. Its status then
// does not say that it is served.
func TestAHeldListenerTakesNoPortFromAValidOne(t *testing.T) {
	protocols := map[gwapiv1.ProtocolType]*gwapiv1.ListenerTLSConfig{
		"TURN-UDP": nil, "TURN-TCP": nil, "TURN-TLS": certified("second"), "TURN-DTLS": certified("second"),
	}
	n, kept, replaced := 0, 0, 0
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, other := range []string{"t", "more"} {
			for _, protocol := range slices.Sorted(maps.Keys(protocols)) {
				// Port 443 belongs to w, port 3478 to u and t. In some states, w also has port 9443.
				for _, at := range []struct {
					port  gwapiv1.PortNumber
					inPod string
				}{{443, ""}, {3478, ""}, {9443, ""}, {6000, ""}, {6000, "443"}} {
					port, inPod := at.port, at.inPod
					// Each state and each port is tested with both orders.
					n++
					first := n%2 == 0
					name := fmt.Sprintf(
						"%s, then %s is %s %d, target %q, w first %t", state, other, protocol, port, inPod, first,
					)
					change := func(s *site) {
						states[state](s)
						if other == "more" {
							s.add(gwapiv1.Listener{Name: "more"})
						}
						l := s.listener(other)
						l.Protocol, l.Port, l.TLS = protocol, port, protocols[protocol]
						if inPod != "" {
							annotated("targetport", other+"="+inPod)(s)
						}
					}
					s := newSite(t, "", first)
					s.settle(name)
					was := *s.entry("w")
					change(s)
					s.settle(name)
					fresh := newSite(t, "", first)
					change(fresh)
					fresh.settle(name)
					if fresh.conflicted() {
						continue // TestAnInvalidListenerStaysAsPublished
					}
					k, r := s.compareWithFresh(name, fresh, was)
					kept, replaced = kept+k, replaced+r
				}
			}
		}
	}
	t.Logf("a held listener was kept %d times and replaced %d times", kept, replaced)
	if kept == 0 || replaced == 0 {
		t.Error("one of the two never happens")
	}
}

// conflicted reports whether the spec gives one port to two listeners.
func (s *site) conflicted() bool {
	return slices.ContainsFunc(s.result.Status.Listeners, func(l gwapiv1.ListenerStatus) bool {
		return slices.ContainsFunc(l.Conditions, func(c metav1.Condition) bool {
			return c.Type == condition.Conflicted && c.Status == metav1.ConditionTrue
		})
	})
}

// entry returns the published config of a listener, or nil.
func (s *site) entry(name string) *config.Listener {
	if s.published == nil {
		return nil
	}
	i := slices.IndexFunc(s.published.Listeners, func(l config.Listener) bool { return l.Name == "turn/lobby/"+name })
	if i < 0 {
		return nil
	}
	return &s.published.Listeners[i]
}

// compareWithFresh compares a site with a site that has the same spec and has published nothing. was is the earlier
// published config of w. The results are the numbers of cases in which w stays as published, and in which another
// listener has replaced w.
func (s *site) compareWithFresh(name string, fresh *site, was config.Listener) (kept, replaced int) {
	s.Helper()
	for _, spec := range s.gateway.Spec.Listeners {
		want, got := fresh.entry(string(spec.Name)), s.entry(string(spec.Name))
		if want == nil {
			continue
		}
		if got == nil || got.Protocol != want.Protocol || got.Port != want.Port || got.PublicPort != want.PublicPort ||
			got.Cert != want.Cert || !slices.Equal(got.Routes, want.Routes) {
			s.Errorf("%s: %s is %s, without a published config before it is %s", name, spec.Name, brief(got), brief(want))
			continue
		}
		for _, c := range fresh.status(*want).Conditions {
			if has := s.status(*got).Conditions; isTrue(has, c.Type) != isTrue(fresh.status(*want).Conditions, c.Type) {
				s.Errorf("%s: %s has conditions %+v, without a published config before %+v", name, spec.Name, has, c)
			}
		}
	}
	if fresh.entry("w") != nil || !slices.Contains(heldListeners(s.result), was.Name) {
		return 0, 0
	}
	inUse := ""
	for _, l := range s.published.Listeners {
		shares := l.Port == was.Port || l.PublicPort == was.PublicPort
		if l.Name != was.Name && l.Protocol.Network() == was.Protocol.Network() && shares {
			inUse = l.Name
		}
	}
	said := ""
	for _, c := range s.status(was).Conditions {
		if c.Type == condition.Programmed {
			said = c.Message
		}
	}
	switch now := s.entry("w"); {
	case inUse == "" && (now == nil || now.Port != was.Port || now.Protocol != was.Protocol):
		s.Errorf("%s: w is %s, and was %s", name, brief(now), brief(&was))
	case inUse == "":
		return 1, 0
	case now != nil:
		s.Errorf("%s: w is %s beside %s, which has its port", name, brief(now), inUse)
	case said != condition.ListenerInvalid().Message():
		s.Errorf("%s: w says %q, and is replaced by %s", name, said, inUse)
	default:
		return 0, 1
	}
	return 0, 0
}

func brief(l *config.Listener) string {
	if l == nil {
		return "not served"
	}
	return fmt.Sprintf("%s at port %d, public port %d, to %v", l.Protocol, l.Port, l.PublicPort, l.Routes)
}
