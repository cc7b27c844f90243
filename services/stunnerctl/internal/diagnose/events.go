package diagnose

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// lastWarning returns the latest warning of an object, or nil. A later normal event with one of the reasons ends
// earlier warnings.
func (s *Snapshot) lastWarning(kind string, o named, ended ...string) *corev1.Event {
	var last *corev1.Event
	for _, e := range s.eventsOf(kind, o) {
		if e.Type == corev1.EventTypeWarning || slices.Contains(ended, e.Reason) {
			last = e
		}
	}
	if last == nil || last.Type != corev1.EventTypeWarning {
		return nil
	}
	return last
}

// eventsOf returns the events of an object, the oldest first.
func (s *Snapshot) eventsOf(kind string, o named) (all []*corev1.Event) {
	for _, e := range list[corev1.Event](s, "Event") {
		about := e.InvolvedObject
		if about.Kind == kind && about.Namespace == o.GetNamespace() && about.Name == o.GetName() {
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b *corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
	return all
}

// eventTime returns when an event last occurred.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// pattern maps a text of another program to the problem that the text means, and the remedy.
type pattern struct {
	text    *regexp.Regexp
	problem string
	remedy  string
}

// match returns the first pattern that matches the text, or nil.
func match(all []pattern, text string) *pattern {
	for i := range all {
		if all[i].text.MatchString(text) {
			return &all[i]
		}
	}
	return nil
}
