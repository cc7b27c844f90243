package finding

// verdict is the meaning of the status of a condition type.
type verdict struct {
	// good is the status that reports no problem; empty if neither status reports a problem.
	good     string
	severity Severity
}

// conditions are the condition types that the operator writes. An object with a warning is in force.
var conditions = map[string]verdict{
	"Accepted":                  {"True", Error},
	"Programmed":                {"True", Error},
	"ResolvedRefs":              {"True", Error},
	"Autoscaled":                {"True", Warning},
	"Conflicted":                {"False", Error},
	"ControllerConflict":        {"False", Error},
	"RealmNotDNSName":           {"False", Warning},
	"InsecureInlineCredentials": {"False", Warning},
	"GuessableCredentials":      {"False", Warning},
	"OffloadUnavailable":        {"False", Warning},
	"DeprecatedInput":           {"False", Warning},
	"LoadBalancerLimited":       {"False", Warning},
	"InputIgnored":              {"False", Info},
	"InUse":                     {},
}

// OfCondition returns the severity of the problem that a condition of the operator reports. It is empty if the status
// reports no problem, and for condition types of other controllers.
func OfCondition(kind, status string) Severity {
	if v := conditions[kind]; v.good != "" && status != v.good {
		return v.severity
	}
	return ""
}

// IsCondition reports whether the operator writes a condition type.
func IsCondition(kind string) bool {
	_, known := conditions[kind]
	return known
}
