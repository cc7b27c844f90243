package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// K-03: each change of a condition produces one event, including the warning about inline credentials. A restart of the
// operator produces none.
func TestEventsReportChangedConditions(t *testing.T) {
	t.Parallel()
	s := newInstallation(t)
	s.sees("gateway/front-door", condition("Programmed"), "False")
	s.expose("192.0.2.7")
	s.sees("gateway/front-door", condition("Programmed"), "True")
	s.annotate("gateway/front-door", "stunner.l7mp.io/enable-mixed-protocol-lb", "perhaps")
	s.set("gatewayconfig/"+s.name, `{"spec":{"authRef":null,"authType":"static","userName":"me","password":"marker-in-the-clear"}}`)
	for _, want := range []string{
		"Gateway front-door Warning AddressNotAssigned Programmed is False: no public address",
		"Gateway front-door Normal Programmed Programmed is True",
		"Gateway front-door Warning Warning annotation stunner.l7mp.io/enable-mixed-protocol-lb: \"perhaps\" is neither true nor false",
		"GatewayConfig " + s.name + " Warning Warning InsecureInlineCredentials is True",
	} {
		s.await(func(context.Context) error {
			if told := s.events(); strings.Count(told, want) != 1 {
				return fmt.Errorf("want exactly one event %q:\n%s", want, told)
			}
			return nil
		})
	}
	if told := s.events(); strings.Contains(told, "marker-in-the-clear") {
		t.Errorf("events contain a secret:\n%s", told)
	}

	s.stop()
	restarted := time.Now()
	s.start()
	s.leads()
	s.processed()
	for _, e := range s.writes(restarted) {
		if e.Resource == "events" {
			t.Errorf("unneeded write: %s %s", e.Verb, e.Name)
		}
	}
}

// events returns the events of the namespace, each as kind, name, type, reason and message.
func (s *installation) events() string {
	s.Helper()
	list, err := s.client().EventsV1().Events(s.name).List(s.Context(), metav1.ListOptions{})
	s.must(err)
	var all strings.Builder
	for _, e := range list.Items {
		fmt.Fprintln(&all, e.Regarding.Kind, e.Regarding.Name, e.Type, e.Reason, e.Note)
	}
	return all.String()
}
