package manifest

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// OnOtherNodes reports whether the pods of a Dataplane and existing pods are on different nodes, as OnDifferentNodes
// does.
func OnOtherNodes(a *stunnerv1.Dataplane, existing corev1.PodSpec) bool {
	return different(nodesOf(a), nodesOfPod(existing))
}

// OnDifferentNodes reports whether nodeSelector and required node affinity keep the pods of two Dataplanes on different
// nodes: both require values of the same label or field, and have no value in common. Operators other than In are
// ignored, so the result may be false although no node has pods of both.
func OnDifferentNodes(a, b *stunnerv1.Dataplane) bool {
	if a == b {
		return false
	}
	return different(nodesOf(a), nodesOf(b))
}

func different(these, others []nodeValues) bool {
	for _, one := range these {
		for _, other := range others {
			if !one.excludes(other) {
				return false
			}
		}
	}
	return true
}

// nodeValues are the values that a node must have, by label or field.
type nodeValues map[string][]string

// excludes reports whether no node can have the values of both.
func (n nodeValues) excludes(other nodeValues) bool {
	for key, values := range n {
		wanted, both := other[key]
		if both && !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(wanted, v) }) {
			return true
		}
	}
	return false
}

// nodesOf returns alternative node selectors. A node on which the pods may run meets at least one of them.
func nodesOf(template *stunnerv1.Dataplane) []nodeValues {
	pod, err := patched(Workload{Template: template}.pod(Owner{}), template.Spec.PodTemplatePatch)
	if err != nil {
		return []nodeValues{{}}
	}
	return nodesOfPod(pod.Spec)
}

func nodesOfPod(pod corev1.PodSpec) []nodeValues {
	selected := nodeValues{}
	for label, value := range pod.NodeSelector {
		selected[label] = []string{value}
	}
	if a := pod.Affinity; a == nil || a.NodeAffinity == nil ||
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []nodeValues{selected}
	}
	var alternatives []nodeValues
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		values := maps.Clone(selected)
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if _, twice := values[r.Key]; r.Operator == corev1.NodeSelectorOpIn && !twice {
				values[r.Key] = r.Values
			}
		}
		alternatives = append(alternatives, values)
	}
	return alternatives
}
