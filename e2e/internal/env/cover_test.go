package env

import (
	"slices"
	"testing"
)

// TestCoverHasEachPair: each possible pair of values occurs, no shape is impossible, and the result does not change.
func TestCoverHasEachPair(t *testing.T) {
	all := AllFactors()
	shapes := Cover(all)
	if got, want := Covered(shapes, all), Pairs(all); got != want {
		t.Errorf("%d of %d pairs are covered", got, want)
	}
	for _, s := range shapes {
		if why := s.impossible(); why != "" {
			t.Errorf("%s: %s", s, why)
		}
		if again, err := ParseShape(s.String()); err != nil || again != s {
			t.Errorf("%s is read as %s, %v", s, again, err)
		}
	}
	if !slices.Equal(shapes, Cover(all)) {
		t.Error("Cover returns other shapes when it is called again")
	}
	// The two largest factors have 7 and 6 values, and five variants of a place have 15 possible pairs with the
	// listeners.
	if len(shapes) < 42+15 || len(shapes) > 65 {
		t.Errorf("%d shapes", len(shapes))
	}
	t.Logf("%d shapes cover %d pairs", len(shapes), Pairs(all))
}

// TestFewShapesHaveEachValue: the shapes for the pairs of three factors also contain each value of all other factors.
func TestFewShapesHaveEachValue(t *testing.T) {
	shapes := Cover([]Factor{Listeners, Pods, Families})
	for f, values := range Values {
		for _, v := range values {
			if !slices.ContainsFunc(shapes, func(s Shape) bool { return s.Is(v) }) {
				t.Errorf("no shape has the value %s of %s", v, Factor(f))
			}
		}
	}
	if len(shapes) > 13 {
		t.Errorf("%d shapes", len(shapes))
	}
	t.Logf("%d shapes", len(shapes))
}

// TestValuesAreDistinct: a value belongs to one factor, so that its name is enough.
func TestValuesAreDistinct(t *testing.T) {
	seen := map[Value]Factor{}
	for f, values := range Values {
		for _, v := range values {
			if other, twice := seen[v]; twice {
				t.Errorf("%q is a value of %s and of %s", v, other, Factor(f))
			}
			seen[v] = Factor(f)
		}
	}
}

// TestImpossiblePairsHaveAReason: the values exist and belong to two factors.
func TestImpossiblePairsHaveAReason(t *testing.T) {
	factor := func(v Value) int {
		return slices.IndexFunc(Values[:], func(values []Value) bool { return slices.Contains(values, v) })
	}
	for _, p := range ImpossiblePairs {
		if a, b := factor(p.A), factor(p.B); a < 0 || b < 0 || a == b || p.Why == "" {
			t.Errorf("pair %+v", p)
		}
	}
}
