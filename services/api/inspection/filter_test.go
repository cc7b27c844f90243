package inspection

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseFilter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	known := []string{"client", "limit", "since", "user"}
	for query, want := range map[string]Filter{
		"":                           {Limit: DefaultLimit},
		"user=ada&client=192.0.2.1":  {Limit: DefaultLimit, User: "ada", Client: "192.0.2.1"},
		"limit=1000":                 {Limit: 1000},
		"since=10m":                  {Limit: DefaultLimit, Since: now.Add(-10 * time.Minute)},
		"since=2026-03-01T11:00:00Z": {Limit: DefaultLimit, Since: now.Add(-time.Hour)},
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseFilter(values, now, known...); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", query, got, err, want)
		}
	}
	for query, want := range map[string]string{
		"listener=udp":      `unknown parameter "listener": use client, limit, since or user`,
		"users=ada":         `unknown parameter "users": use client, limit, since or user`,
		"user=ada&user=bob": `parameter "user" is there 2 times: give it once`,
		"limit=0":           `limit "0": use 1 to 1000`,
		"limit=1001":        `limit "1001": use 1 to 1000`,
		"limit=":            `limit "": use 1 to 1000`,
		"since=-10m":        `since "-10m": use a duration such as 10m, or a time such as 2006-01-02T15:04:05Z`,
		"since=yesterday":   `since "yesterday": use a duration`,
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseFilter(values, now, known...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
	if _, err := ParseFilter(url.Values{"user": {"a"}}, now); err == nil || err.Error() != `unknown parameter "user"` {
		t.Error(err)
	}
}
