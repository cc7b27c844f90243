package resource

import (
	"strings"
	"time"
)

// Installation identifies an installed operator. All its replicas share the Lease of the leader election in the
// namespace, so the namespace identifies the installation.
type Installation struct {
	Namespace string
	// Since is the creation time of the Lease, in whole seconds, as the API server stores it.
	Since time.Time
}

// String returns NAMESPACE@TIME.
func (i Installation) String() string { return i.Namespace + "@" + i.Since.UTC().Format(time.RFC3339) }

// ParseInstallation parses the result of String. It returns false if the text has another form.
func ParseInstallation(text string) (i Installation, ok bool) {
	namespace, since, _ := strings.Cut(text, "@")
	t, err := time.Parse(time.RFC3339, since)
	if err != nil || namespace == "" {
		return Installation{}, false
	}
	return Installation{namespace, t.UTC()}, true
}

// Compare orders installations by age, the oldest first. Installations of the same second are ordered by namespace, so
// that all installations find the same order.
func (i Installation) Compare(other Installation) int {
	if c := i.Since.Compare(other.Since); c != 0 {
		return c
	}
	return strings.Compare(i.Namespace, other.Namespace)
}
