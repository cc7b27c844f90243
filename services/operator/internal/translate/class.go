package translate

import (
	"cmp"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Class says whether a GatewayClass can be used.
func Class(v *resource.View, name string, opt Options) ClassResult {
	class := v.Class(name)
	if class == nil || string(class.Spec.ControllerName) != opt.ControllerName {
		return ClassResult{Class: name}
	}
	_, unfit := classReference(v, class).resolve()
	before := v.ClassStatus(name)
	return ClassResult{Class: name, Ours: true, Status: gwapiv1.GatewayClassStatus{
		Conditions: condition.Merge(before.Conditions, class.Generation, opt.Now,
			condition.Holds(condition.Accepted, condition.ReasonAccepted, unfit.As(condition.ReasonInvalidParameters))),
		SupportedFeatures: before.SupportedFeatures,
	}}
}

// GatewayConfig says whether a GatewayConfig can be used, and warns of what works and is better done otherwise.
func GatewayConfig(v *resource.View, key types.NamespacedName, opt Options) ConditionsResult {
	gc := v.GatewayConfig(key)
	if gc == nil {
		return ConditionsResult{}
	}
	auth, unauthentic := authOf(v, gc, opt)
	r := reference{view: v, present: true, key: key}
	wanted := []metav1.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted, first(r.findsDataplane(), r.deniesReadably(), r.annotates(), unauthentic)),
	}
	if realm := cmp.Or(gc.Spec.Realm, stunnerv1.DefaultRealm); !dnsName.MatchString(realm) {
		wanted = append(wanted, condition.True(condition.RealmNotDNSName, condition.RealmWarning(realm)))
	}
	if fields := inlineSecrets(gc); len(fields) > 0 {
		wanted = append(wanted, condition.True(condition.InsecureInlineCredentials, condition.InlineWarning(strings.Join(fields, " and "))))
	}
	if short := shortSecrets(auth.Auth); len(short) > 0 && unauthentic.OK() {
		wanted = append(wanted, condition.True(condition.GuessableCredentials,
			condition.GuessableWarning("the "+strings.Join(short, " and the ")+" is", credential.StrongSecret)))
	}
	before := v.GatewayConfigStatus(key).Conditions
	wanted = append(wanted, opt.inUse(usersOfConfig(v, key), before)...)
	return ConditionsResult{Ours: true, Conditions: condition.Merge(before, gc.Generation, opt.Now, wanted...)}
}

// dnsName is a DNS name as people write it, in lower case (RFC 1123 §2.1).
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// inlineSecrets names the fields that hold a secret in the open. An authRef puts them out of force, not out of sight.
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

// shortSecrets names the secrets that clients can find by trying.
func shortSecrets(auth config.Auth) (names []string) {
	for _, s := range []struct{ key, name string }{{config.KeyPassword, "password"}, {config.KeySecret, "shared secret"}} {
		if value := auth.Credentials[s.key]; value != "" && len(value) < credential.StrongSecret {
			names = append(names, s.name)
		}
	}
	return names
}

// Dataplane says whether a Dataplane can be used: its schema refuses what cannot, in a folder as in a cluster, but for the patch, and says whether
// there is something that scales it.
func Dataplane(v *resource.View, name string, opt Options) ConditionsResult {
	d := v.Dataplane(name)
	if d == nil {
		return ConditionsResult{}
	}
	before := v.DataplaneStatus(name).Conditions
	wanted := []metav1.Condition{condition.Holds(condition.Accepted, condition.ReasonAccepted, first(patchOf(d), scalingOf(d)))}
	if engine := cmp.Or(d.Spec.OffloadEngine, stunnerv1.DefaultOffloadEngine); engine != stunnerv1.OffloadNone {
		wanted = append(wanted, condition.True(condition.OffloadUnavailable, condition.OffloadWarning(string(engine))))
	}
	if manifest.Scaled(d) && scalingOf(d).OK() {
		wanted = append(wanted, condition.Holds(condition.Autoscaled, condition.ReasonKEDAFound, scalerOf(v, d)))
	}
	wanted = append(wanted, opt.inUse(usersOfDataplane(v, name), before)...)
	return ConditionsResult{Ours: true, Conditions: condition.Merge(before, d.Generation, opt.Now, wanted...)}
}

// patchOf says whether the patch of a Dataplane can be used.
func patchOf(d *stunnerv1.Dataplane) condition.Finding {
	if err := manifest.CheckPatch(d); err != nil {
		return condition.PatchInvalid(err)
	}
	return condition.Finding{}
}

// scalingOf says whether the autoscaling of a Dataplane can be used.
func scalingOf(d *stunnerv1.Dataplane) condition.Finding {
	if err := manifest.CheckScaling(d); err != nil {
		return condition.ScalingInvalid(err)
	}
	return condition.Finding{}
}

// scalerOf says whether there is something that scales, and by what.
func scalerOf(v *resource.View, d *stunnerv1.Dataplane) condition.Finding {
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

// StaticService says whether every prefix of a StaticService is one.
func StaticService(v *resource.View, key types.NamespacedName, opt Options) ConditionsResult {
	s := v.StaticService(key)
	if s == nil {
		return ConditionsResult{}
	}
	found := prefixesOf(s)
	before := v.StaticServiceStatus(key).Conditions
	wanted := []metav1.Condition{condition.Holds(condition.Accepted, condition.ReasonAccepted, condition.Join(found))}
	wanted = append(wanted, opt.inUse(usersOfStaticService(v, key), before)...)
	return ConditionsResult{Ours: true, Conditions: condition.Merge(before, s.Generation, opt.Now, wanted...)}
}

// prefixesOf says which prefixes of a StaticService are none.
func prefixesOf(s *stunnerv1.StaticService) (found []condition.Finding) {
	for _, p := range s.Spec.Prefixes {
		// Ports belong to the route.
		if _, err := config.ParsePrefix(p); err != nil {
			found = append(found, condition.PrefixInvalid(resource.KeyOf(s).String(), p))
		}
	}
	return found
}
