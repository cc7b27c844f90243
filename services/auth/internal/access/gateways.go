package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Gateways is a set of gateways, described by patterns. The zero Gateways contains all gateways.
type Gateways struct {
	patterns []pattern
	limited  bool
}

// pattern is NAMESPACE/NAME. An asterisk in either part matches any characters.
type pattern struct{ namespace, name string }

// ParseGateways returns the set of gateways that match one of the patterns. Without patterns the set is empty.
func ParseGateways(entries []string) (Gateways, error) {
	g := Gateways{limited: true}
	var errs []error
	for _, entry := range entries {
		namespace, name, _ := strings.Cut(entry, "/")
		if namespace == "" || name == "" || strings.Contains(name, "/") {
			errs = append(errs,
				fmt.Errorf("%q is no pattern: use NAMESPACE/NAME, in which * stands for any characters", entry))
			continue
		}
		g.patterns = append(g.patterns, pattern{namespace, name})
	}
	return g, errors.Join(errs...)
}

// Empty reports whether the set cannot contain any gateway.
func (g Gateways) Empty() bool { return g.limited && len(g.patterns) == 0 }

// All reports whether the set contains all gateways because it has no patterns.
func (g Gateways) All() bool { return !g.limited }

// Contains reports whether a gateway is in the set.
func (g Gateways) Contains(namespace, name string) bool {
	return !g.limited || slices.ContainsFunc(g.patterns, func(p pattern) bool {
		return matches(p.namespace, namespace) && matches(p.name, name)
	})
}

// CoversNamespace reports whether the set can contain a gateway of the namespace.
func (g Gateways) CoversNamespace(namespace string) bool {
	inNamespace := func(p pattern) bool { return matches(p.namespace, namespace) }
	return !g.limited || slices.ContainsFunc(g.patterns, inNamespace)
}

// ContainsNamespace reports whether the set contains all gateways of the namespace, also those that do not exist yet.
func (g Gateways) ContainsNamespace(namespace string) bool {
	return !g.limited || slices.ContainsFunc(g.patterns, func(p pattern) bool {
		return matches(p.namespace, namespace) && strings.Trim(p.name, "*") == ""
	})
}

// matches reports whether the namespace or the name of a gateway matches its part of a pattern.
func matches(part, name string) bool {
	texts := strings.Split(part, "*")
	last := len(texts) - 1
	if last == 0 {
		return part == name
	}
	rest, ok := strings.CutPrefix(name, texts[0])
	for _, text := range texts[1:last] {
		if !ok {
			return false
		}
		_, rest, ok = strings.Cut(rest, text)
	}
	return ok && strings.HasSuffix(rest, texts[last])
}
