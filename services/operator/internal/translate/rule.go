package translate

import "github.com/stunner-gateway/stunner/services/operator/internal/condition"

// rule checks one requirement on an object. It returns the zero Finding if the object meets the requirement.
type rule[T any] func(T) condition.Finding

// rules are checked in order. A rule may rely on the fact that the object has passed all earlier rules.
type rules[T any] []rule[T]

// firstFinding returns the finding of the first rule that the object does not pass; zero if it passes all rules.
func (r rules[T]) firstFinding(subject T) condition.Finding {
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
