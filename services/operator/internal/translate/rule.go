package translate

import "github.com/stunner-gateway/stunner/services/operator/internal/condition"

// rule checks one requirement. It returns the zero Finding if the subject meets it.
type rule[T any] func(T) condition.Finding

// rules are checked in order. A rule may rely on the fact that the subject has passed all earlier rules.
type rules[T any] []rule[T]

// judge returns the finding of the first rule that the subject does not pass; zero if it passes all.
func (r rules[T]) judge(subject T) condition.Finding {
	for _, check := range r {
		if found := check(subject); !found.OK() {
			return found
		}
	}
	return condition.Finding{}
}

// first returns the first finding that is not OK.
func first(findings ...condition.Finding) condition.Finding {
	for _, f := range findings {
		if !f.OK() {
			return f
		}
	}
	return condition.Finding{}
}
