package condition

import (
	"fmt"
	"slices"
	"strings"
)

// MaxUsers is the largest number of users of an object that condition InUse shows exactly and by name. Above this
// number, the condition shows only the order of magnitude, so that creating a thousand users does not write the status
// a thousand times.
const MaxUsers = 5

// Usage returns condition InUse of an object. n is the number of its users, which are of the kind noun. names are the
// names of those users that a reader of the object may see.
func Usage(noun string, n int, names []string) Condition {
	switch {
	case n == 0:
		return False(InUse, finding(ReasonUnused, "nobody"))
	case n > MaxUsers:
		return True(InUse, finding(ReasonUsed, "more than %d %ss", order(n), noun))
	case n > 1:
		noun += "s"
	}
	message := strings.Join(slices.Sorted(slices.Values(names)), ", ")
	switch others := n - len(names); {
	case others == n:
		return True(InUse, finding(ReasonUsed, "%d %s", n, noun))
	case others > 0:
		message += fmt.Sprintf(" and %d of other namespaces", others)
	}
	return True(InUse, finding(ReasonUsed, "%d %s: %s", n, noun, message))
}

// order returns the largest of the numbers 5, 10, 20, 50, 100, … that is less than n.
func order(n int) int {
	below := MaxUsers
	for unit := 10; ; unit *= 10 {
		for _, next := range []int{unit, 2 * unit, 5 * unit} {
			if next >= n {
				return below
			}
			below = next
		}
	}
}
