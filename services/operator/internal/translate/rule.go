package translate

import "github.com/stunner-gateway/stunner/services/operator/internal/condition"

// valueOr returns what p points at, or absent.
func valueOr[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// rule looks at one aspect of a subject. The zero finding lets the subject pass.
type rule[T any] func(T) condition.Finding

// rules are asked in their order; each may rely on what those before it have let pass.
type rules[T any] []rule[T]

// judge returns the first finding.
func (r rules[T]) judge(subject T) condition.Finding {
	for _, ask := range r {
		if found := ask(subject); !found.OK() {
			return found
		}
	}
	return condition.Finding{}
}

// first returns the first finding that is one.
func first(findings ...condition.Finding) condition.Finding {
	for _, f := range findings {
		if !f.OK() {
			return f
		}
	}
	return condition.Finding{}
}
