package env

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// seed makes Cover return the same shapes in each run.
const seed = 25

// candidates is the number of random shapes of which Cover takes the best one.
const candidates = 200

// pair is a pair of values of two factors, of which the first is the smaller one.
type pair struct {
	f, g Factor
	a, b Value
}

// pairs returns the pairs of values of a shape, of the given factors only.
func (s Shape) pairs(of []Factor) (list []pair) {
	for i, f := range of {
		for _, g := range of[i+1:] {
			list = append(list, pair{f, g, s[f], s[g]})
		}
	}
	return list
}

// AllFactors are all factors.
func AllFactors() (list []Factor) {
	for f := range factors {
		list = append(list, f)
	}
	return list
}

// Pairs returns the number of pairs of values of the given factors that Cover wants.
func Pairs(of []Factor) int { return len(wantedPairs(of)) }

// wantedPairs returns the possible pairs, except the pairs of ofVariant.
func wantedPairs(of []Factor) map[pair]bool {
	wanted := map[pair]bool{}
	for i, f := range of {
		for _, g := range of[i+1:] {
			for _, a := range Values[f] {
				for _, b := range Values[g] {
					if p := (pair{f, g, a, b}); !excluded(a, b) && !p.ofVariant() {
						wanted[p] = true
					}
				}
			}
		}
	}
	return wanted
}

func excluded(a, b Value) bool {
	return slices.ContainsFunc(ImpossiblePairs, func(p Impossible) bool { return p.A == a && p.B == b || p.A == b && p.B == a })
}

// ofVariant reports whether the pair consists of a place in variants and a factor that describes the network behind the
// nodes.
func (p pair) ofVariant() bool {
	return slices.Contains(variants.places, p.a) && slices.Contains(variants.behind, p.g)
}

// Covered returns the number of pairs of values of the given factors that Cover wants and that occur in the shapes.
func Covered(shapes []Shape, of []Factor) int {
	left := wantedPairs(of)
	count := len(left)
	for _, s := range shapes {
		for _, p := range s.pairs(of) {
			delete(left, p)
		}
	}
	return count - len(left)
}

// Cover returns shapes that contain each wanted pair of values of two of the given factors, and each value of the other
// factors. It is greedy: each shape covers as many new pairs and values as the best of many random candidates.
func Cover(of []Factor) (shapes []Shape) {
	random := rand.New(rand.NewPCG(seed, 0))
	wanted := wantedPairs(of)
	for f := range factors {
		for _, v := range Values[f] {
			wanted[single(f, v)] = true
		}
	}
	for len(wanted) > 0 {
		best, covered := Shape{}, []pair(nil)
		left := slices.SortedFunc(maps.Keys(wanted), comparePairs) // the order of a map is random
		for range candidates {
			s := candidate(random, left[random.IntN(len(left))])
			if c := s.covers(of, wanted); len(c) > len(covered) {
				best, covered = s, c
			}
		}
		for _, p := range covered {
			delete(wanted, p)
		}
		shapes = append(shapes, best)
	}
	return shapes
}

// single returns the pair of a value and itself, which stands for the value alone.
func single(f Factor, v Value) pair { return pair{f, f, v, v} }

// covers returns the wanted pairs and values that a shape has.
func (s Shape) covers(of []Factor, wanted map[pair]bool) (list []pair) {
	has := s.pairs(of)
	for f, v := range s {
		has = append(has, single(Factor(f), v))
	}
	for _, p := range has {
		if wanted[p] {
			list = append(list, p)
		}
	}
	return list
}

// candidate returns a possible shape with a pair, and otherwise random values.
func candidate(random *rand.Rand, with pair) Shape {
	for {
		var s Shape
		for f, values := range Values {
			s[f] = values[random.IntN(len(values))]
		}
		s[with.f], s[with.g] = with.a, with.b
		if s.impossible() == "" {
			return s
		}
	}
}

func comparePairs(a, b pair) int {
	return slices.Compare(
		[]string{names[a.f], names[a.g], string(a.a), string(a.b)}, []string{names[b.f], names[b.g], string(b.a), string(b.b)})
}
