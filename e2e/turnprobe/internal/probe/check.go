// Package probe sends requests to a TURN server and compares the responses with the RFCs. It needs only the address of
// the server.
//
// Each file has one family of checks.
package probe

import (
	"regexp"
	"slices"
)

// Check is one check of a server.
type Check struct {
	// ID is the requirement, followed by the aspect that the check covers.
	ID string
	// RFC is the section that requires the behaviour, or "policy" for a rule of safe operation that the RFCs permit.
	RFC string
	// Says is the requirement in one sentence.
	Says string
	// On lists the transports that the check applies to. Empty means all.
	On []Transport
	// Pace determines which checks run concurrently.
	Pace Pace
	// Run carries out the check. It returns normally if the requirement holds.
	Run func(*Trial)
}

// Pace is how a check is scheduled.
type Pace int

const (
	// Brisk checks run concurrently.
	Brisk Pace = iota
	// Waiting checks wait for a server timer of some seconds, concurrently with all others.
	Waiting
	// Measuring checks run alone, because they measure durations or send much data.
	Measuring
	// Long checks take minutes and run only with -long.
	Long
)

// Checks returns all checks in display order.
func Checks() []Check {
	return slices.Concat(binding, classic, credentials, allocate, refresh, permission, channel, stream, abuse)
}

// Matching returns the checks whose ID matches.
func Matching(pattern *regexp.Regexp) []Check {
	return slices.DeleteFunc(Checks(), func(c Check) bool { return !pattern.MatchString(c.ID) })
}

func (c Check) applies(t Transport) bool { return len(c.On) == 0 || slices.Contains(c.On, t) }
