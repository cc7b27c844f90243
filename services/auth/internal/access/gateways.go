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

// maxPattern is the maximum length of a pattern in bytes. Each request is compared with it, and the names of a Gateway
// have at most 317 bytes.
const maxPattern = 512

// ParseGateways returns the set of gateways that match one of the patterns. Without patterns the set is empty.
func ParseGateways(entries []string) (Gateways, error) {
	g := Gateways{limited: true}
	var errs []error
	for _, entry := range entries {
		if len(entry) > maxPattern {
			errs = append(errs, fmt.Errorf("a pattern has %d bytes: at most %d are allowed", len(entry), maxPattern))
			continue
		}
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

// matches reports whether the namespace or the name of a gateway matches its part of a pattern. Its time is linear in
// the lengths, because it uses the first position at which a text between asterisks matches, and never needs another
// one.
func matches(part, name string) bool {
	prefix, rest, wild := strings.Cut(part, "*")
	if !wild {
		return part == name
	}
	name, ok := strings.CutPrefix(name, prefix)
	for ok {
		text, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, text)
		}
		_, name, ok = strings.Cut(name, text)
		rest = after
	}
	return false
}
