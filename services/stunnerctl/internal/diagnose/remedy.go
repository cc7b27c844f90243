package diagnose

import (
	"cmp"
	"regexp"
)

// documentRemedy matches the remedy at the end of a message about a document of a file.
var documentRemedy = regexp.MustCompile(
	`[:;,] ((?:begin|convert|encode|put|raise|run|set|split|write) .*)$`,
)

// Split splits the message of a condition, or of a problem of a document, into problem and remedy. reason is the reason
// of the condition; it decides the remedy of a message without one. The remedy is empty if neither has one.
func Split(reason, message string) (problem, remedy string) {
	problem = Clean(message)
	for _, pattern := range []*regexp.Regexp{messageRemedy, documentRemedy} {
		if m := pattern.FindStringSubmatchIndex(problem); m != nil {
			return problem[:m[0]], problem[m[2]:m[3]]
		}
	}
	if p := match(textRemedies, problem); p != nil {
		remedy = p.remedy
	}
	return problem, cmp.Or(remedy, remedies[reason])
}
