package kube

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Each change of a condition is recorded once.
func TestEachChangeOfAConditionIsOneEvent(t *testing.T) {
	is := func(kind, status, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: message}
	}
	gateway := func(cs ...metav1.Condition) gwapiv1.GatewayStatus { return gwapiv1.GatewayStatus{Conditions: cs} }
	listener := func(cs ...metav1.Condition) gwapiv1.GatewayStatus {
		return gwapiv1.GatewayStatus{Listeners: []gwapiv1.ListenerStatus{{Name: "udp", Conditions: cs}}}
	}
	route := func(cs ...metav1.Condition) gwapiv1.RouteStatus {
		ref := gwapiv1.ParentReference{
			Name: "edge", Namespace: new(gwapiv1.Namespace("media")), SectionName: new(gwapiv1.SectionName("udp")),
			Port: new(gwapiv1.PortNumber(1)),
		}
		return gwapiv1.RouteStatus{Parents: []gwapiv1.RouteParentStatus{{ParentRef: ref, Conditions: cs}}}
	}
	for name, c := range map[string]struct {
		before, after any
		notes         []string
		want          []event
	}{
		"nothing": {
			gateway(is("Accepted", "True", "Accepted", "")), gateway(is("Accepted", "True", "Accepted", "")), nil, nil,
		},
		"good and new": {gateway(), gateway(is("Accepted", "True", "Accepted", "")), nil, nil},
		"words only": {
			gateway(is("Accepted", "False", "Pending", "one")), gateway(is("Accepted", "False", "Pending", "two")), nil,
			nil,
		},
		"from the CRD": {
			gateway(is("Programmed", "Unknown", "Pending", "")), gateway(is("Programmed", "True", "Programmed", "")),
			nil, []event{{"", false, "Programmed", "Programmed", "Programmed is True"}},
		},
		"bad and new": {
			stunnerv1.Status{},
			stunnerv1.Status{Conditions: []metav1.Condition{is("Accepted", "False", "InvalidRealm", "why")}}, nil,
			[]event{{"", true, "Accepted", "InvalidRealm", "Accepted is False: why"}},
		},
		"other reason": {
			gateway(is("Programmed", "False", "Pending", "")), gateway(is("Programmed", "False", "Invalid", "")), nil,
			[]event{{"", true, "Programmed", "Invalid", "Programmed is False"}},
		},
		"bad when true": {
			listener(is("Conflicted", "False", "NoConflicts", "")),
			listener(is("Conflicted", "True", "ProtocolConflict", "")), nil,
			[]event{{
				"spec.listeners{udp}", true, "Conflicted", "ProtocolConflict",
				"spec.listeners{udp}: Conflicted is True",
			}},
		},
		"redundant": {listener(), listener(is("Programmed", "False", "Pending", "")), nil, nil},
		"healed": {
			listener(is("Conflicted", "True", "ProtocolConflict", "")),
			listener(is("Conflicted", "False", "NoConflicts", "")), nil,
			[]event{
				{"spec.listeners{udp}", false, "Conflicted", "NoConflicts", "spec.listeners{udp}: Conflicted is False"},
			},
		},
		"a parent": {
			route(is("Accepted", "True", "Accepted", "")), route(is("Accepted", "False", "NoMatchingParent", "")), nil,
			[]event{{
				"spec.parentRefs{media/edge/udp:1}", true, "Accepted", "NoMatchingParent",
				"spec.parentRefs{media/edge/udp:1}: Accepted is False",
			}},
		},
		"a note": {
			gateway(is("Accepted", "True", "Accepted", "")), gateway(is("Accepted", "True", "Accepted", "odd")),
			[]string{"odd"}, []event{{"", true, "Accepted", "Warning", "odd"}},
		},
		"a note again": {gateway(is("Accepted", "True", "Accepted", "so; odd")), gateway(
			is("Accepted", "True", "Accepted", "odd"),
		), []string{"odd"}, nil},
		"a class": {
			gwapiv1.GatewayClassStatus{Conditions: []metav1.Condition{is("Accepted", "Unknown", "Pending", "")}},
			gwapiv1.GatewayClassStatus{Conditions: []metav1.Condition{is("Accepted", "True", "Accepted", "")}}, nil,
			[]event{{"", false, "Accepted", "Accepted", "Accepted is True"}},
		},
		"too long": {
			gateway(is("Accepted", "True", "Accepted", "")), gateway(is("Accepted", "True", "Accepted", "")),
			[]string{strings.Repeat("ä", 2000)}, []event{{"", true, "Accepted", "Warning", strings.Repeat("ä", 512)}},
		},
	} {
		if diff := cmp.Diff(c.want, newEvents(c.before, c.after, c.notes), cmp.AllowUnexported(event{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
