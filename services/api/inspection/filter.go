package inspection

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of the parameter limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Filter holds the parameters of a request for a list. An empty field selects every entry.
type Filter struct {
	Listener string
	// User is a user name or its hash.
	User string
	// Client is the IP address of a client, with or without a port, or its hash.
	Client string
	// Reason is the reason of a refusal.
	Reason string
	// Gateway is NAMESPACE/NAME.
	Gateway string
	// Since is the earliest time of an entry.
	Since time.Time
	// Limit is the maximum number of entries, 1 to MaxLimit.
	Limit int
}

// ParseFilter parses the query parameters of a request at the time now. It refuses parameters that are not in known,
// because a misspelled filter would select all entries. The parameter since is a duration before now, such as 10m, or a
// time in RFC 3339.
func ParseFilter(query url.Values, now time.Time, known ...string) (f Filter, err error) {
	f.Limit = DefaultLimit
	texts := map[string]*string{
		"listener": &f.Listener, "user": &f.User, "client": &f.Client, "reason": &f.Reason, "gateway": &f.Gateway,
	}
	for name, values := range query {
		switch value := values[0]; {
		case len(known) == 0:
			return f, fmt.Errorf("unknown parameter %q", name)
		case !slices.Contains(known, name):
			return f, fmt.Errorf("unknown parameter %q: use %s", name, either(known))
		case len(values) > 1:
			return f, fmt.Errorf("parameter %q is there %d times: give it once", name, len(values))
		case name == "limit":
			if f.Limit, err = parseLimit(value); err != nil {
				return f, err
			}
		case name == "since":
			if f.Since, err = parseSince(value, now); err != nil {
				return f, err
			}
		default:
			*texts[name] = value
		}
	}
	return f, nil
}

func parseLimit(value string) (int, error) {
	limit, err := strconv.Atoi(value)
	if err != nil || limit < 1 || limit > MaxLimit {
		return limit, fmt.Errorf("limit %q: use 1 to %d", value, MaxLimit)
	}
	return limit, nil
}

func parseSince(value string, now time.Time) (time.Time, error) {
	if age, err := time.ParseDuration(value); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return at, fmt.Errorf("since %q: use a duration such as 10m, or a time such as 2006-01-02T15:04:05Z", value)
	}
	return at, nil
}

// either returns "a", or "a, b or c".
func either(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
