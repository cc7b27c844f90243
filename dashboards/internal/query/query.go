// Package query holds what boards and alerts ask Prometheus: the labels that a scrape has to give, and the questions that both ask.
package query

import (
	"fmt"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// What the label job says, however the services are scraped.
const (
	Dataplane = "stunner-dataplane"
	Operator  = "stunner-operator"
	Auth      = "stunner-auth"
)

// Metrics that are Prometheus' own, or that every process exports.
const (
	Up             = "up"
	Alerts         = "ALERTS"
	AlertsForState = "ALERTS_FOR_STATE"
	CPU            = "process_cpu_seconds_total"
	Memory         = "process_resident_memory_bytes"
	OpenFiles      = "process_open_fds"
	MaxFiles       = "process_max_fds"
	Started        = "process_start_time_seconds"
	Goroutines     = "go_goroutines"
)

// Gateway are the labels that tell one Gateway from another.
const Gateway = "namespace, gateway"

// full are the refusals of a process that cannot take another call, credentials those of a client that could not show who it is, and bounds
// those of one that has enough already.
var (
	full        = []string{"capacity", "no_relay"}
	credentials = []string{"wrong_password", "unknown_user", "expired_credential"}
	bounds      = []string{"quota", "source_quota", "draining", "stun_only"}
)

// Reasons as matchers of the label reason.
var (
	Full        = oneOf(full)
	Credentials = oneOf(credentials)
	// Failed are the refusals that keep a client from calling. That it is asked for a credential first, or for a newer nonce, does not.
	Failed = oneOf(full, credentials, bounds)
	// Unusual leaves out that a client is asked for a credential, or for a newer nonce: that is how every call begins.
	Unusual = `reason!~"no_credential|stale_nonce"`
	// Backlog are the drops of datagrams for which there is no room on the way out.
	Backlog = oneOf([]string{"congested", "slow_client"})
	// Denied are the refusals of peers that no route allows.
	Denied = oneOf([]string{"peer_denied", "port_denied"})
)

// Unanswered matches the label code of a question to which no number came: neither an answer nor a stream that who asked has ended.
const Unanswered = `code!~"OK|Canceled"`

func oneOf(lists ...[]string) string {
	var all []string
	for _, list := range lists {
		all = append(all, list...)
	}
	return fmt.Sprintf(`reason=~"%s"`, strings.Join(all, "|"))
}

// Of is a selector.
func Of(metric string, matchers ...string) string {
	var given []string
	for _, m := range matchers {
		if m != "" {
			given = append(given, m)
		}
	}
	if len(given) == 0 {
		return metric
	}
	return metric + "{" + strings.Join(given, ", ") + "}"
}

// Job is a matcher.
func Job(name string) string { return fmt.Sprintf("job=%q", name) }

// Rate is a rate a second, summed by labels; over everything when there are none.
func Rate(by, window, metric string, matchers ...string) string {
	return Sum(by, fmt.Sprintf("rate(%s[%s])", Of(metric, matchers...), window))
}

// Sum adds up by labels; over everything when there are none.
func Sum(by, expr string) string {
	if by == "" {
		return fmt.Sprintf("sum(%s)", expr)
	}
	return fmt.Sprintf("sum by (%s) (%s)", by, expr)
}

// Quantile is what that share of the times of a histogram stays below.
func Quantile(share float64, window, histogram string, matchers ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, %s)", share, Rate("le", window, histogram+"_bucket", matchers...))
}

// Success is the share of the attempts to call that came about. It has no value where nobody has tried.
func Success(by, window string, matchers ...string) string {
	made := Rate(by, window, telemetry.AllocationsTotal, matchers...)
	failed := Rate(by, window, telemetry.Refused, append(matchers, Failed)...)
	return fmt.Sprintf("%s / (%s + (%s or 0 * %s) > 0)", made, made, failed, made)
}
