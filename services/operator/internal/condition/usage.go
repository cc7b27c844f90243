package condition

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxUsers is how many users of an object are named and counted one by one. Above it the status shows the order of their number, so that a
// thousand of them do not write it a thousand times.
const MaxUsers = 5

// Usage says who uses an object: n of what noun names, and their names if they are few.
func Usage(noun string, n int, names []string) metav1.Condition {
	switch {
	case n == 0:
		return False(InUse, Finding{Reason: ReasonUnused, Message: "nobody"})
	case n > MaxUsers:
		return True(InUse, finding(ReasonUsed, "more than %d %ss", order(n), noun))
	case n > 1:
		noun += "s"
	}
	return True(InUse, finding(ReasonUsed, "%d %s: %s", n, noun, strings.Join(slices.Sorted(slices.Values(names)), ", ")))
}

// order is the largest of 5, 10, 20, 50, 100… that is less than n.
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
