package inspection

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// UsageSpan is how far back usage is kept. Requests for an earlier time are refused.
const UsageSpan = time.Hour

// Usage is the traffic that a pod has relayed for its users in a period of the last hour, in whole minutes.
type Usage struct {
	// From and To are the bounds of the requested period, From rounded down and To rounded up to minutes, but not after
	// the time of the answer.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Since is the time at which the pod began to count. Earlier traffic is missing.
	Since time.Time `json:"since"`
	// Total is the sum of all entries, including entries that are left out.
	Total UsageFigures `json:"total"`
	// Entries are the sums by user or by route, the entries with the most bytes first.
	Entries []UsageEntry `json:"entries"`
	// Truncated reports that entries are left out, or that the pod has not kept all users apart. The figures of an
	// entry may then be too low. The figures of Total are not, unless the request selects a user.
	Truncated bool `json:"truncated,omitempty"`
}

// UsageEntry is the usage of one user or of one route. The usage of a route has no sessions and seconds, because a
// session may use several routes.
type UsageEntry struct {
	// User is a user id, or its hash if the pod hashes the users of usage records.
	User string `json:"user,omitempty"`
	// Route is NAMESPACE/NAME.
	Route string `json:"route,omitempty"`
	UsageFigures
}

// UsageFigures are sums over sessions.
type UsageFigures struct {
	// Sessions is the number of sessions that began in the period. A session that another pod or process has begun is
	// not counted.
	Sessions uint64 `json:"sessions"`
	// Seconds is the sum of the times for which sessions were up.
	Seconds float64 `json:"seconds"`
	// Sent is to peers, and Received from peers.
	Sent     UsageCount `json:"sent"`
	Received UsageCount `json:"received"`
}

// UsageCount is a number of datagrams and the bytes of their payloads.
type UsageCount struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
}

// Add adds other figures.
func (f *UsageFigures) Add(g UsageFigures) {
	f.Sessions += g.Sessions
	f.Seconds += g.Seconds
	f.Sent.add(g.Sent)
	f.Received.add(g.Received)
}

// Bytes is the sum of both directions.
func (f *UsageFigures) Bytes() uint64 { return f.Sent.Bytes + f.Received.Bytes }

func (c *UsageCount) add(d UsageCount) {
	c.Bytes += d.Bytes
	c.Packets += d.Packets
}

// UsageBy is the kind of the entries of an answer.
type UsageBy string

// The values of UsageBy.
const (
	UsageByUser  UsageBy = "user"
	UsageByRoute UsageBy = "route"
)

// UsageQuery holds the parameters of a request for usage.
type UsageQuery struct {
	// From and To are the bounds of the period.
	From, To time.Time
	// User is the only user that counts; empty means all.
	User string
	By   UsageBy
	// Limit is the maximum number of entries, 1 to MaxLimit.
	Limit int
}

// Values returns the query parameters of a request.
func (q UsageQuery) Values() url.Values {
	v := url.Values{
		"from": {q.From.UTC().Format(time.RFC3339)}, "to": {q.To.UTC().Format(time.RFC3339)}, "by": {string(q.By)},
		"limit": {strconv.Itoa(q.Limit)},
	}
	if q.User != "" {
		v.Set("user", q.User)
	}
	return v
}

// ParseUsageQuery parses the query parameters of a request at the time now. Without from the period begins an hour ago,
// and without to it ends now.
func ParseUsageQuery(query url.Values, now time.Time) (q UsageQuery, err error) {
	q = UsageQuery{From: now.Add(-UsageSpan), To: now, By: UsageByUser, Limit: DefaultLimit}
	known := []string{"by", "from", "limit", "to", "user"}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return q, fmt.Errorf("unknown parameter %q: use %s", name, either(known))
		}
		if len(values) > 1 {
			return q, fmt.Errorf("parameter %q is there %d times: give it once", name, len(values))
		}
		switch value := values[0]; name {
		case "from":
			q.From, err = parseTime(name, value)
		case "to":
			q.To, err = parseTime(name, value)
		case "by":
			if q.By = UsageBy(value); q.By != UsageByUser && q.By != UsageByRoute {
				err = fmt.Errorf("by %q: use %s or %s", value, UsageByUser, UsageByRoute)
			}
		case "limit":
			q.Limit, err = parseLimit(value)
		case "user":
			if q.User = value; value == "" {
				err = errors.New("user is empty: give a user id, or leave it out")
			}
		}
		if err != nil {
			return q, err
		}
	}
	if !q.From.Before(q.To) {
		return q, errors.New("from is not before to: give a period")
	}
	return q, nil
}

func parseTime(name, value string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return at, fmt.Errorf("%s %q: use a time such as 2006-01-02T15:04:05Z", name, value)
	}
	return at, nil
}
