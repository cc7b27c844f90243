package translate

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Class computes the status of a GatewayClass.
func Class(v *resource.View, name string, opt Options) ClassResult {
	class := v.Class(name)
	if class == nil || string(class.Spec.ControllerName) != opt.ControllerName {
		return ClassResult{Class: name}
	}
	finding := first(unreadFinding(class),
		referenceRules.firstFinding(classReference(v, class)).As(condition.ReasonInvalidParameters))
	before, known := v.ClassStatus(name), v.Installations()
	claims := claimConditions(before.Conditions, known, opt.ControllerName)
	accepted := condition.Holds(condition.Accepted, condition.ReasonAccepted, finding)
	merged := condition.Merge(before.Conditions, class.Generation, opt.Now, append([]condition.Condition{accepted}, claims...)...)
	if isPaused(before.Conditions, known) {
		merged = pausedConditions(before.Conditions, class.Generation, opt.Now, claims)
	}
	return ClassResult{Class: name, Ours: true, Problems: merged.Problems, Status: gwapiv1.GatewayClassStatus{
		Conditions: merged.Conditions, SupportedFeatures: before.SupportedFeatures,
	}}
}

// GatewayConfig computes the status of a GatewayConfig: whether it is valid, and warnings.
func GatewayConfig(v *resource.View, key types.NamespacedName, opt Options) ConditionsResult {
	gc := v.GatewayConfig(key)
	if gc == nil {
		return ConditionsResult{}
	}
	auth, invalidAuth := authOf(v, gc, opt)
	r := reference{view: v, present: true, key: key}
	wanted := []condition.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted,
			first(unreadFinding(gc), r.dataplaneExists(), r.deniedBackendsParse(), r.annotationsValid(), invalidAuth)),
	}
	if realm := cmp.Or(gc.Spec.Realm, stunnerv1.DefaultRealm); !dnsName.MatchString(realm) {
		wanted = append(wanted, condition.True(condition.RealmNotDNSName, condition.RealmWarning(realm)))
	}
	if fields := inlineSecrets(gc); len(fields) > 0 {
		warning := condition.InlineWarning(fields)
		wanted = append(wanted, condition.True(condition.InsecureInlineCredentials, warning))
	}
	if short := shortSecrets(auth.Auth); len(short) > 0 && invalidAuth.OK() {
		field := "spec.authRef"
		if gc.Spec.AuthRef == nil {
			field = short[0].field
		}
		var names []string
		for _, s := range short {
			names = append(names, s.name)
		}
		wanted = append(wanted, condition.True(condition.GuessableCredentials,
			condition.GuessableWarning(field, "the "+strings.Join(names, " and the ")+" is", credential.StrongSecret)))
	}
	if gc.Spec.LegacyGrants {
		warning := condition.LegacyGrantsWarning(ofOurClass(v, key, opt))
		wanted = append(wanted, condition.True(condition.DeprecatedInput, warning))
	}
	if ignored := logLevelIgnored(gc); !ignored.OK() {
		wanted = append(wanted, condition.True(condition.InputIgnored, ignored))
	}
	before := v.GatewayConfigStatus(key).Conditions
	wanted = append(wanted, opt.inUse(usersOfConfig(v, key), before)...)
	return ConditionsResult{true, condition.Merge(before, gc.Generation, opt.Now, wanted...)}
}

// ofOurClass reports whether a GatewayClass of this controller refers to a GatewayConfig.
func ofOurClass(v *resource.View, config types.NamespacedName, opt Options) bool {
	for name := range v.ClassesOfConfig(config) {
		if class := v.Class(name.Name); class != nil && string(class.Spec.ControllerName) == opt.ControllerName {
			return true
		}
	}
	return false
}

// dnsName matches a DNS name in lower case (RFC 1123 §2.1).
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// inlineSecrets returns the names of the GatewayConfig fields that contain a secret in plain text. A field is returned
// even if spec.authRef makes it unused, because every reader of the GatewayConfig can see the secret.
func inlineSecrets(gc *stunnerv1.GatewayConfig) []string {
	var fields []string
	if s, inline := gc.Spec.Password.Inline(); inline && s != "" {
		fields = append(fields, "spec.password")
	}
	if s, inline := gc.Spec.SharedSecret.Inline(); inline && s != "" {
		fields = append(fields, "spec.sharedSecret")
	}
	return fields
}

// shortSecrets returns the names of the credentials that are so short that an attacker can guess them, for use in
// messages.
func shortSecrets(auth config.Auth) []namedSecret {
	return slices.DeleteFunc([]namedSecret{
		{config.KeyPassword, "spec.password", "password"}, {config.KeySecret, "spec.sharedSecret", "shared secret"},
	}, func(s namedSecret) bool {
		value := auth.Credentials[s.key]
		return value == "" || len(value) >= credential.StrongSecret
	})
}

// namedSecret is a credential: its key in the config, and its field and name in messages.
type namedSecret struct{ key, field, name string }

// Dataplane computes the status of a Dataplane. The pod template patch is checked here because the schema of the CRD
// cannot validate it. spec.autoscaling is checked again because the installed CRD may be older and lack these rules.
func Dataplane(v *resource.View, name string, opt Options) ConditionsResult {
	d := v.Dataplane(name)
	if d == nil {
		return ConditionsResult{}
	}
	before := v.DataplaneStatus(name).Conditions
	wanted := []condition.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted, first(unreadFinding(d), checkPatch(d), checkScaling(d))),
	}
	if warning := offloadWarning(v, d); !warning.OK() {
		wanted = append(wanted, condition.True(condition.OffloadUnavailable, warning))
	}
	if d.Spec.DataplaneResource == stunnerv1.ResourceDaemonSet && d.Spec.Replicas != nil {
		wanted = append(wanted, condition.True(condition.DeprecatedInput, condition.ReplicasWarning()))
	}
	if manifest.Scaled(d) && checkScaling(d).OK() {
		wanted = append(wanted, condition.Holds(condition.Autoscaled, condition.ReasonKEDAFound, checkScaler(v, d)))
	}
	wanted = append(wanted, opt.inUse(usersOfDataplane(v, name), before)...)
	return ConditionsResult{true, condition.Merge(before, d.Generation, opt.Now, wanted...)}
}

// checkPatch checks spec.podTemplatePatch.
func checkPatch(d *stunnerv1.Dataplane) condition.Finding {
	if err := manifest.CheckPatch(d); err != nil {
		return condition.PatchInvalid(err)
	}
	return condition.Finding{}
}

// checkScaling checks spec.autoscaling.
func checkScaling(d *stunnerv1.Dataplane) condition.Finding {
	if err := manifest.CheckScaling(d); err != nil {
		return condition.ScalingInvalid(err)
	}
	return condition.Finding{}
}

// checkScaler checks whether autoscaling is available: KEDA is installed, and the pods export the metrics that the
// trigger needs.
func checkScaler(v *resource.View, d *stunnerv1.Dataplane) condition.Finding {
	switch {
	case v.Host() != nil:
		return condition.ScalingOnHost()
	case v.ScalingMissing():
		return condition.KEDAMissing()
	case d.Spec.Autoscaling.Trigger == stunnerv1.TriggerPrometheus && !d.Spec.EnableMetricsEndpoint:
		return condition.MetricsOff()
	}
	return condition.Finding{}
}

// StaticService computes the status of a StaticService: whether all of its prefixes are valid.
func StaticService(v *resource.View, key types.NamespacedName, opt Options) ConditionsResult {
	s := v.StaticService(key)
	if s == nil {
		return ConditionsResult{}
	}
	found := append(checkPrefixes(s), unreadFinding(s))
	before := v.StaticServiceStatus(key).Conditions
	wanted := []condition.Condition{condition.Holds(condition.Accepted, condition.ReasonAccepted, condition.Join(found))}
	wanted = append(wanted, opt.inUse(usersOfStaticService(v, key), before)...)
	return ConditionsResult{true, condition.Merge(before, s.Generation, opt.Now, wanted...)}
}

// checkPrefixes returns a finding for each invalid prefix of a StaticService.
func checkPrefixes(s *stunnerv1.StaticService) (found []condition.Finding) {
	for i, p := range s.Spec.Prefixes {
		if _, err := config.ParsePrefix(p); err != nil {
			found = append(found, condition.PrefixInvalid(resource.KeyOf(s).String(), i, p))
		}
	}
	return found
}

// ClassResult is the translation of a GatewayClass.
type ClassResult struct {
	Class string
	// Ours is false for a GatewayClass of another controller, whose status must not be written.
	Ours     bool
	Status   gwapiv1.GatewayClassStatus
	Problems []condition.Problem
}

// ConditionsResult is the translation of an object whose status is a list of conditions: a GatewayConfig, a Dataplane
// or a StaticService.
type ConditionsResult struct {
	// Ours is false if the object does not exist.
	Ours bool
	condition.Merged
}
