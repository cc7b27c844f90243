package condition

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxUsers is how many users of an object are named and counted one by one. Above it the status shows the order of their number, so that a
// thousand of them do not write it a thousand times.
const MaxUsers = 5

// Usage says how many of what noun names use an object, and the names of those that may be named if there are few.
func Usage(noun string, n int, names []string) metav1.Condition {
	switch {
	case n == 0:
		return False(InUse, Finding{Reason: ReasonUnused, Message: "nobody"})
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
