package condition

import "fmt"

// Conditions from the reports of dataplanes.

// ConfigRefused means that no dataplane serves the whole published config. problem is the error message of the
// dataplane in the given pod.
func ConfigRefused(pod, problem string) Finding {
	return finding(ReasonInvalid, "no dataplane serves all of the config: pod %s says: %s", pod, problem)
}

// PodRefused means that config discovery refuses a pod of the Dataplane, which gets no config.
func PodRefused(dataplane, pod string) Finding {
	return finding(ReasonPending, "pod %s gets no config, because it connects to config discovery without TLS or a token, as "+
		"the dataplane of the existing system does", pod,
	).in("Dataplane", dataplane).
		remedy("set spec.image to a dataplane of this project or remove it, or start the operator with --discovery-auth=pod-address")
}

// ConfigNotRun means that dataplanes report, but none of them runs the published config.
func ConfigNotRun(pods int) Finding {
	return finding(ReasonPending, "%s, none runs the published config", counted(pods, "pod reports", "pods report")).
		remedy("see their logs")
}

// Draining returns the finding of condition Programmed if the Gateway is programmed. The message contains the number of
// draining pods.
func Draining(pods int) Finding {
	if pods == 0 {
		return Finding{Reason: ReasonProgrammed}
	}
	return finding(ReasonProgrammed, "programmed, %s draining", counted(pods, "pod", "pods"))
}

// OffloadFailed warns that a pod forwards media in user space. problem is the reason that its dataplane reports.
func OffloadFailed(pod, problem string) Finding {
	return finding(ReasonWarning, "pod %s does not forward media in the kernel as requested: %s", pod, problem).hint(offloadHint)
}

// OffloadRefused warns that the API server rejects the workload of a Gateway with the capabilities of in-kernel
// forwarding.
func OffloadRefused(object, problem string) Finding {
	return finding(ReasonWarning, "the pods of %s forward media in user space, because the API server refuses their capabilities: %s", object, problem).hint(offloadHint)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
