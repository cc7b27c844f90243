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

// Pairs returns the number of pairs of values of the given factors that are possible.
func Pairs(of []Factor) int { return len(possible(of)) }

// possible returns the pairs that occur in a shape.
func possible(of []Factor) map[pair]bool {
	wanted := map[pair]bool{}
	for i, f := range of {
		for _, g := range of[i+1:] {
			for _, a := range Values[f] {
				for _, b := range Values[g] {
					if !excluded(a, b) {
						wanted[pair{f, g, a, b}] = true
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

// Covered returns the number of pairs of values of the given factors that occur in the shapes.
func Covered(shapes []Shape, of []Factor) int {
	seen := map[pair]bool{}
	for _, s := range shapes {
		for _, p := range s.pairs(of) {
			seen[p] = true
		}
	}
	return len(seen)
}

// Cover returns shapes in which each possible pair of values of two of the given factors occurs. The other factors have
// random values. It is greedy: each shape covers as many new pairs as the best of many random candidates.
func Cover(of []Factor) (shapes []Shape) {
	random := rand.New(rand.NewPCG(seed, 0))
	wanted := possible(of)
	for len(wanted) > 0 {
		best, most := Shape{}, 0
		left := slices.SortedFunc(maps.Keys(wanted), comparePairs) // the order of a map is random
		for range candidates {
			s := candidate(random, left[random.IntN(len(left))])
			if n := count(s, of, wanted); n > most {
				best, most = s, n
			}
		}
		for _, p := range best.pairs(of) {
			delete(wanted, p)
		}
		shapes = append(shapes, best)
	}
	return shapes
}

// count returns how many of the wanted pairs a shape has.
func count(s Shape, of []Factor, wanted map[pair]bool) (n int) {
	for _, p := range s.pairs(of) {
		if wanted[p] {
			n++
		}
	}
	return n
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
