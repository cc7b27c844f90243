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

// eventRecorder records status changes of translated objects as Kubernetes events, after the status was written. A
// restart of the operator causes no events, because statuses do not change then. The zero eventRecorder records
// nothing.
type eventRecorder struct {
	recorder events.EventRecorder
	scheme   *runtime.Scheme
	// limit is the rate limit of all events together. Events above it are dropped, which loses nothing: the conditions
	// contain the same information.
	limit flowcontrol.RateLimiter
}

const (
	// eventRate is the maximum number of events per second of this process.
	eventRate = 10
	// eventBurst is the maximum number of events at once, above eventRate.
	eventBurst = 100
	// maxEventText is the API server's limit for the note of an event, in bytes.
	maxEventText = 1024
)

// newEventRecorder returns a recorder that works until ctx ends. It uses its own client with its own rate limit, so
// that events never delay other requests.
func newEventRecorder(
	ctx context.Context, config *rest.Config, s *runtime.Scheme, controller string,
) (eventRecorder, error) {
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

type event struct {
	// field is the field path of the part of the object that the event concerns; empty for the whole object.
	field          string
	warning        bool
	action, reason string
	text           string
}

// record records events of an object.
func (r eventRecorder) record(o client.Object, all []event) {
	if r.recorder == nil || len(all) == 0 {
		return
	}
	gvk, err := apiutil.GVKForObject(o, r.scheme)
	if err != nil {
		return // cannot happen: the object was just written
	}
	for _, t := range all {
		if !r.limit.TryAccept() {
			return
		}
		// The resource version is omitted, so that equal events of different versions are combined into a series.
		about := &corev1.ObjectReference{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), FieldPath: t.field,
		}
		kind := corev1.EventTypeNormal
		if t.warning {
			kind = corev1.EventTypeWarning
		}
		r.recorder.Eventf(about, nil, kind, t.reason, t.action, "%s", t.text)
	}
}

// fieldCondition is a condition and the field path of the part of the object that it describes.
type fieldCondition struct {
	field string
	metav1.Condition
}

// newEvents returns the events of a status change: one for each condition whose status or reason has changed, and one
// for each new note. A condition that is added without a problem causes no event.
func newEvents(before, after any, notes []string) (all []event) {
	had := map[[2]string]metav1.Condition{}
	for _, s := range fieldConditions(before) {
		had[[2]string{s.field, s.Type}] = s.Condition
	}
	for _, s := range fieldConditions(after) {
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
		all = append(all,
			event{field: s.field, warning: wrong, action: s.Type, reason: s.Reason, text: truncate(text, maxEventText)})
	}
	said := had[[2]string{"", condition.Accepted}].Message
	for _, note := range notes {
		if !strings.Contains(said, note) {
			all = append(all, event{
				warning: true, action: condition.Accepted, reason: condition.ReasonWarning,
				text: truncate(note, maxEventText),
			})
		}
	}
	return all
}

// fieldConditions returns the conditions in a status. It omits condition Programmed of listeners, because condition
// Programmed of the Gateway reports the same.
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
			others := slices.DeleteFunc(slices.Clone(l.Conditions),
				func(c metav1.Condition) bool { return c.Type == condition.Programmed })
			add(fmt.Sprintf("spec.listeners{%s}", l.Name), others)
		}
	case gwapiv1.GatewayClassStatus:
		add("", s.Conditions)
	case gwapiv1.RouteStatus:
		for _, p := range s.Parents {
			add(fmt.Sprintf("spec.parentRefs{%s}", translate.ParentName(p.ParentRef)), p.Conditions)
		}
	case stunnerv1.Status:
		add("", s.Conditions)
	}
	return all
}
