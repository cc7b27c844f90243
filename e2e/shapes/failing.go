package shapes

import (
	"slices"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// Failing is a behaviour that does not hold in some shapes.
type Failing struct {
	Behaviour string
	// In are values that each of the shapes has. Unless are values that none of the shapes has.
	In, Unless []env.Value
	// Symptom is a regular expression that matches a part of the error.
	Symptom string
}

// FailingCells are the cells that fail. A row is removed when the behaviour holds in its shapes.
var FailingCells = []Failing{}

// find returns the row of a cell.
func find(behaviour string, s env.Shape) *Failing {
	for i, f := range FailingCells {
		if f.Behaviour == behaviour && s.Is(f.In...) && !slices.ContainsFunc(f.Unless, func(v env.Value) bool { return s.Is(v) }) {
			return &FailingCells[i]
		}
	}
	return nil
}
