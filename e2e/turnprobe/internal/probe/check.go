// Package probe asks a TURN server questions and judges the answers by the RFCs. It knows the server by its address only.
package probe

import (
	"regexp"
	"slices"
)

// Check is one question to a server.
type Check struct {
	// ID is the requirement and the aspect of it that is looked at.
	ID string
	// RFC is the section that decides; "policy" where it is a rule of safe operation that the RFCs allow.
	RFC string
	// Says is what must hold, in one sentence.
	Says string
	// On are the transports that the check can be made on; none means all.
	On []Transport
	// Pace tells with what the check may share the machine.
	Pace Pace
	// Run asks. It returns when everything is as it must be.
	Run func(*Trial)
}

// Pace is the way in which a check uses time.
type Pace int

const (
	// Brisk checks run side by side.
	Brisk Pace = iota
	// Waiting checks wait for a timer of the server, seconds long, beside everything else.
	Waiting
	// Measuring checks run by themselves, because they look at durations or send much.
	Measuring
	// Long checks wait for minutes, and run only when they are asked for.
	Long
)

// Checks returns all checks, in the order in which they are shown.
func Checks() []Check {
	return slices.Concat(binding, credentials, allocate, refresh, permission, channel, stream, abuse)
}

// Matching returns the checks whose id matches.
func Matching(pattern *regexp.Regexp) []Check {
	return slices.DeleteFunc(Checks(), func(c Check) bool { return !pattern.MatchString(c.ID) })
}

func (c Check) applies(t Transport) bool { return len(c.On) == 0 || slices.Contains(c.On, t) }
