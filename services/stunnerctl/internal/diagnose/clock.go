package diagnose

import (
	"fmt"
	"time"
)

// clockTolerance is the maximum deviation of a clock that is not reported. It includes the duration of a request.
const clockTolerance = 30 * time.Second

// thisMachine is the name of the machine that runs the command, in findings about clocks.
const thisMachine = "this machine"

// offset returns how far a clock is ahead of the reference.
func (s *Snapshot) offset(c Clock) time.Duration { return c.Time.Sub(c.At) - s.ahead() }

// ahead returns how far the reference is ahead of this machine. The reference is the clock of the API server, or of the
// operator, because the clock of the user's machine is the least certain. If most other clocks agree with this machine,
// it is the reference.
func (s *Snapshot) ahead() time.Duration {
	agree, best := 1, time.Duration(0) // counts this machine, whose difference to itself is 0
	for _, c := range s.Clocks {
		d := c.Time.Sub(c.At)
		n := 0
		for _, other := range s.Clocks {
			if (other.Time.Sub(other.At) - d).Abs() <= clockTolerance {
				n++
			}
		}
		if d.Abs() <= clockTolerance {
			n++
		}
		if n > agree {
			agree, best = n, d
		}
	}
	if best.Abs() <= clockTolerance {
		return 0
	}
	return best
}

// reference returns the time of the snapshot by the clock that most machines agree with.
func (s *Snapshot) reference() time.Time { return s.Now.Add(s.ahead()) }

// podClocks returns the clocks of the dataplanes of a Gateway.
func (s *Snapshot) podClocks(g *Gateway) (all []Clock) {
	for _, status := range g.Statuses {
		if !status.Now.IsZero() {
			all = append(all, Clock{
				Of: objectName("Pod", g.Namespace, status.Pod), Time: status.Now, At: g.Live.AskedAt,
			})
		}
	}
	return all
}

func clockFinding(of string, off time.Duration) Finding {
	direction := "behind"
	if off > 0 {
		direction = "ahead of"
	}
	return Finding{
		Severity: Error, Object: of, Field: "clock",
		Problem: fmt.Sprintf(
			"its clock is %s %s the other clocks: credentials and certificates expire too early or too late",
			off.Abs().Round(time.Second),
			direction,
		),
		Remedy: "correct the time synchronization (NTP) of the machine or node",
	}
}

// clocksRules compare the clocks of this machine, the API server and the operator. Those of pods are compared in the
// stage of their Gateway.
var clocksRules = []Rule{
	{"clocks agree", func(s *Snapshot, _ *Gateway) (found []Finding) {
		if off := -s.ahead(); off != 0 {
			f := clockFinding(thisMachine, off)
			f.Severity = Warning // calls do not depend on this clock
			found = append(found, f)
		}
		for _, c := range s.Clocks {
			if off := s.offset(c); off.Abs() > clockTolerance {
				found = append(found, clockFinding(c.Of, off))
			}
		}
		return found
	}},
}

func clocksFact(s *Snapshot, _ *Gateway) string {
	most := time.Duration(0)
	for _, c := range s.Clocks {
		most = max(most, s.offset(c).Abs())
	}
	if len(s.Clocks) == 0 {
		return notChecked + ": only the clock of this machine is known"
	}
	return fmt.Sprintf("%d clocks differ by at most %s", len(s.Clocks)+1, most.Round(time.Second))
}
