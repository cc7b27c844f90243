// Package query defines the labels and queries that dashboards and alerts share.
package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Values of the label job.
const (
	Dataplane = "stunner-dataplane"
	Operator  = "stunner-operator"
	Auth      = "stunner-auth"
)

// Metrics of Prometheus itself, and of every process.
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

// Gateway are the labels that identify a Gateway.
const Gateway = "namespace, gateway"

// Values of the label reason: the process has no capacity, the credentials are invalid, or the client is over a limit or
// revoked.
var (
	full        = []string{"capacity", "no_relay"}
	credentials = []string{
		"wrong_password", "unknown_user", "expired_credential", "caveat_malformed", "caveat_unknown", "caveat_gateway",
		"caveat_not_before",
	}
	bounds = []string{"revoked_credential", "quota", "source_quota", "caveat_allocations", "caveat_bytes", "draining", "stun_only"}
)

// Matchers of the label reason.
var (
	Full        = oneOf(full)
	Credentials = oneOf(credentials)
	// Failed matches the refusals that keep a client from connecting. Challenges are part of every connection.
	Failed = oneOf(full, credentials, bounds)
	// Unusual matches all refusals except challenges for a credential or a new nonce.
	Unusual = `reason!~"no_credential|stale_nonce"`
	// Backlog matches drops of datagrams because of a full send buffer or queue.
	Backlog = oneOf([]string{"congested", "slow_client"})
	// Denied matches refusals of peers. No route allows the peer, or no route that the credential names.
	Denied = oneOf([]string{"peer_denied", "port_denied", "caveat_route"})
)

// Unanswered matches the gRPC codes of failed requests of KEDA. Canceled is a stream that KEDA ended.
const Unanswered = `code!~"OK|Canceled"`

func oneOf(lists ...[]string) string {
	return fmt.Sprintf(`reason=~"%s"`, strings.Join(slices.Concat(lists...), "|"))
}

// Of returns a selector. Empty matchers are ignored.
func Of(metric string, matchers ...string) string {
	given := slices.DeleteFunc(slices.Clone(matchers), func(m string) bool { return m == "" })
	if len(given) == 0 {
		return metric
	}
	return metric + "{" + strings.Join(given, ", ") + "}"
}

// Job returns a matcher for the label job.
func Job(name string) string { return fmt.Sprintf("job=%q", name) }

// Rate returns a rate per second, summed by labels, or over all series if by is empty.
func Rate(by, window, metric string, matchers ...string) string {
	return Sum(by, fmt.Sprintf("rate(%s[%s])", Of(metric, matchers...), window))
}

// Sum returns a sum by labels, or over all series if by is empty.
func Sum(by, expr string) string {
	if by == "" {
		return fmt.Sprintf("sum(%s)", expr)
	}
	return fmt.Sprintf("sum by (%s) (%s)", by, expr)
}

// Quantile returns a quantile of a histogram.
func Quantile(share float64, window, histogram string, matchers ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, %s)", share, Rate("le", window, histogram+"_bucket", matchers...))
}

// Success returns the share of successful allocations. It has no value without attempts.
func Success(by, window string, matchers ...string) string {
	made := Rate(by, window, telemetry.AllocationsTotal, matchers...)
	failed := Rate(by, window, telemetry.Refused, append(matchers, Failed)...)
	return fmt.Sprintf("%s / (%s + (%s or 0 * %s) > 0)", made, made, failed, made)
}
