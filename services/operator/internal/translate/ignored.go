package translate

import (
	"regexp"
	"slices"
	"strings"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
)

// logLevelPart matches a part of a log level that dataplanes read (telemetry.ParseLevels).
var logLevelPart = regexp.MustCompile(`(?i)^.*[^:\s].*:\s*(TRACE|DEBUG|INFO|WARN|ERROR|DISABLE)\s*$`)

// logLevelIgnored warns about parts of spec.logLevel that dataplanes do not read.
func logLevelIgnored(gc *stunnerv1.GatewayConfig) condition.Finding {
	var ignored []string
	for part := range strings.SplitSeq(gc.Spec.LogLevel, ",") {
		if part = strings.TrimSpace(part); part != "" && !logLevelPart.MatchString(part) {
			ignored = append(ignored, part)
		}
	}
	if len(ignored) == 0 {
		return condition.Finding{}
	}
	return condition.LogLevelIgnored(ignored)
}

// ignoredNotes warns about input of the Gateway and of its backends that has no effect.
func (d draft) ignoredNotes() (notes []condition.Finding) {
	if policy := strings.TrimSpace(d.gateway.Annotations[annotationTrafficPolicy]); policy != "" &&
		!strings.EqualFold(policy, "local") && !strings.EqualFold(policy, "cluster") {
		notes = append(notes, condition.TrafficPolicyIgnored(annotationTrafficPolicy, policy))
	}
	for _, name := range []string{annotationNodePorts, annotationTargetPorts} {
		ports, _ := parsePorts(d.gateway.Annotations[name])
		var unknown []string
		for wanted := range ports {
			if !slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.name() == wanted }) {
				unknown = append(unknown, wanted)
			}
		}
		if slices.Sort(unknown); len(unknown) > 0 {
			notes = append(notes, condition.PortsIgnored(name, unknown))
		}
	}
	notes = append(notes, d.tlsNotes()...)
	if d.hasHostNames() {
		notes = append(notes, condition.HostNamesIgnored())
	}
	return append(notes, d.certificateNotes()...)
}

// hasHostNames reports whether a backend of a served route has an EndpointSlice with host names.
func (d draft) hasHostNames() bool {
	for _, r := range d.admission.served {
		for _, set := range r.sets {
			if slices.ContainsFunc(set.slices, hasNames) {
				return true
			}
		}
	}
	return false
}

// certificateNotes warns about certificates that clients may reject.
func (d draft) certificateNotes() (notes []condition.Finding) {
	for _, l := range d.listeners {
		if !l.served() || l.spec.TLS == nil {
			continue
		}
		for i, ref := range l.spec.TLS.CertificateRefs {
			r := certificateRef{view: d.view, gateway: d.gateway, ref: ref}
			if c := r.certificate(); c != nil && slices.Contains(l.certificates, c) && c.Warning != "" {
				notes = append(notes, condition.ChainIncomplete(l.name(), certificateField(i), r.key().String(), c.Warning))
			}
		}
	}
	return notes
}
