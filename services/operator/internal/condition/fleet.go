package condition

import "fmt"

// What dataplanes report of themselves.

// ConfigRefused says that no dataplane serves what is published, with the words of one of them.
func ConfigRefused(pod, problem string) Finding {
	return finding(ReasonInvalid, "no dataplane serves all of the config: pod %s says: %s", pod, problem)
}

// ConfigNotRun says that the config does not reach the dataplanes.
func ConfigNotRun(pods int) Finding {
	return finding(ReasonPending, "%s, none runs the published config: see their logs", counted(pods, "pod reports", "pods report"))
}

// Draining says of a Gateway that is programmed how many of its dataplanes only serve the clients that they have.
func Draining(pods int) Finding {
	if pods == 0 {
		return Finding{Reason: ReasonProgrammed}
	}
	return finding(ReasonProgrammed, "programmed, %s draining", counted(pods, "pod", "pods"))
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
