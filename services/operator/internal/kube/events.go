package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// herald tells people by events what has become of an object. They are told of what changes, once it stands in the status: whoever starts over an
// unchanged cluster has nothing to tell. The zero herald tells nobody.
type eventRecorder struct {
	recorder events.EventRecorder
	scheme   *runtime.Scheme
	// limit is for all events together. What exceeds it is not told: the conditions say it all.
	limit flowcontrol.RateLimiter
}

// Bounds of the events of a process, in events per second, and of the text of one.
const (
	eventRate  = 10
	eventBurst = 100
	eventText  = 1024 // what the API server takes
)

// newEventRecorder returns a herald that speaks until ctx ends, with a client of its own: nothing else waits for events.
func newEventRecorder(ctx context.Context, config *rest.Config, s *runtime.Scheme, controller string) (eventRecorder, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.Timeout = eventRate, eventBurst, callTime
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return eventRecorder{}, fmt.Errorf("reach API server: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return eventRecorder{}, fmt.Errorf("record events: %w", err)
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return eventRecorder{
		recorder: broadcaster.NewRecorder(s, controller), scheme: s,
		limit: flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst),
	}, nil
}

// event are what one event says.
type event struct {
	// place is the part of the object that it is about, in the notation of a field; empty for all of it.
	field          string
	warning        bool
	action, reason string
	text           string
}

// tell makes events about an object.
func (h eventRecorder) record(o client.Object, all []event) {
	if h.recorder == nil || len(all) == 0 {
		return
	}
	gvk, err := apiutil.GVKForObject(o, h.scheme)
	if err != nil {
		return // it has been written just now
	}
	for _, t := range all {
		if !h.limit.TryAccept() {
			return
		}
		// Without its version: events that say the same of several versions are counted in one.
		about := &corev1.ObjectReference{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), FieldPath: t.field,
		}
		kind := corev1.EventTypeNormal
		if t.warning {
			kind = corev1.EventTypeWarning
		}
		h.recorder.Eventf(about, nil, kind, t.reason, t.action, "%s", t.text)
	}
}

// fieldCondition is a condition and the part of the object that it stands on.
type fieldCondition struct {
	field string
	metav1.Condition
}

// newEvents are what people should hear of when a status takes the place of another: conditions that have changed, and remarks that have not been made
// before. A condition that is new and as it should be is none.
func newEvents(before any, want desired) (all []event) {
	had := map[[2]string]metav1.Condition{}
	for _, s := range fieldConditions(before) {
		had[[2]string{s.field, s.Type}] = s.Condition
	}
	for _, s := range fieldConditions(want.status) {
		old, known := had[[2]string{s.field, s.Type}]
		wrong := condition.Wrong(s.Condition)
		if known && old.Status == s.Status && old.Reason == s.Reason || !known && !wrong {
			continue
		}
		text := fmt.Sprintf("%s is %s", s.Type, s.Status)
		if s.field != "" {
			text = s.field + ": " + text
		}
		if s.Message != "" {
			text += ": " + s.Message
		}
		all = append(all, event{field: s.field, warning: wrong, action: s.Type, reason: s.Reason, text: truncate(text)})
	}
	said := had[[2]string{"", condition.Accepted}].Message
	for _, note := range want.notes {
		if !strings.Contains(said, note) {
			all = append(all, event{warning: true, action: condition.Accepted, reason: condition.ReasonWarning, text: truncate(note)})
		}
	}
	return all
}

// fieldConditions are the conditions in a status. Whether listeners are programmed is told by what the Gateway says of itself.
func fieldConditions(status any) (all []fieldCondition) {
	add := func(field string, conditions []metav1.Condition) {
		for _, c := range conditions {
			all = append(all, fieldCondition{field, c})
		}
	}
	switch s := status.(type) {
	case gwapiv1.GatewayStatus:
		add("", s.Conditions)
		for _, l := range s.Listeners {
			others := slices.DeleteFunc(slices.Clone(l.Conditions), func(c metav1.Condition) bool { return c.Type == condition.Programmed })
			add(fmt.Sprintf("spec.listeners{%s}", l.Name), others)
		}
	case gwapiv1.GatewayClassStatus:
		add("", s.Conditions)
	case gwapiv1.RouteStatus:
		for _, p := range s.Parents {
			add(fmt.Sprintf("spec.parentRefs{%s}", parentName(p.ParentRef)), p.Conditions)
		}
	case stunnerv1.Status:
		add("", s.Conditions)
	}
	return all
}

// parentName tells the parents of a route apart. A parent without kind is a Gateway.
func parentName(ref gwapiv1.ParentReference) string {
	name := string(ref.Name)
	if ref.Namespace != nil {
		name = string(*ref.Namespace) + "/" + name
	}
	if ref.Kind != nil && *ref.Kind != translate.KindGateway {
		name = string(*ref.Kind) + " " + name
	}
	if ref.SectionName != nil {
		name += "/" + string(*ref.SectionName)
	}
	if ref.Port != nil {
		name += fmt.Sprintf(":%d", *ref.Port)
	}
	return name
}

// truncate shortens a text to what an event can hold.
func truncate(text string) string {
	if len(text) <= eventText {
		return text
	}
	return strings.ToValidUTF8(text[:eventText], "")
}
