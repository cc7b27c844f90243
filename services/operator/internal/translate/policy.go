package translate

import (
	"maps"
	"reflect"
	"slices"
	"time"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// deniedBackends returns spec.deniedBackends of a GatewayConfig, or the default if it is unset. The API server sets the
// default, but the empty GatewayConfig that ownParameters makes lacks it.
func deniedBackends(gc *stunnerv1.GatewayConfigSpec) []stunnerv1.DeniedBackend {
	if gc.DeniedBackends == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return gc.DeniedBackends
}

// mergeRule determines the value of a field when two GatewayConfigs are merged: "own" is the GatewayConfig in
// spec.infrastructure.parametersRef of a Gateway, "class" is the GatewayConfig of its GatewayClass.
type mergeRule string

const (
	// keepOwn means that the value of own is used.
	keepOwn mergeRule = "own"
	// takeClass means that the value of class is used.
	takeClass mergeRule = "class"
	// enableEither means that a field is enabled if own or class enables it.
	enableEither mergeRule = "either"
	// joinBoth means that the entries of own and class are used together. If both have an annotation of the same name,
	// the annotation of own is used.
	joinBoth mergeRule = "union"
	// takeSmaller means that the smaller of two limits is used. For quotas and rates, 0 means unlimited. A duration
	// that is unset in class sets no limit. A duration that is unset in own counts as its default. If only one of the
	// two has a budget, that budget is used; an unset field of a budget counts as its default.
	takeSmaller mergeRule = "smaller"
	// allowReference means that own may refer to the same object as class, or to an object that allows the namespace of
	// the Gateway.
	allowReference mergeRule = "reference"
)

type fieldMerge struct {
	rule mergeRule
	// merge sets the field in own to the merged value. If merge is nil, own stays unchanged.
	merge func(own, class *configSpec)
}

type configSpec = stunnerv1.GatewayConfigSpec

// fieldMerges has an entry for every field of a GatewayConfig. The fields of the credentials, from Realm to AuthRef,
// have the rule keepOwn, so that a Gateway with spec.infrastructure.parametersRef never uses credentials of its class.
var fieldMerges = map[string]fieldMerge{
	"Dataplane":    {rule: allowReference}, // see dataplaneFor in parameters.go
	"LogLevel":     {rule: keepOwn},
	"Realm":        {rule: keepOwn},
	"AuthType":     {rule: keepOwn},
	"UserName":     {rule: keepOwn},
	"Password":     {rule: keepOwn},
	"SharedSecret": {rule: keepOwn},
	"AuthRef":      {rule: keepOwn},
	"AuthLifetime": {takeSmaller, func(own, class *configSpec) {
		seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
		own.AuthLifetime = shorter(own.AuthLifetime, class.AuthLifetime, defaultLifetime, seconds)
	}},
	"SessionGrace": {takeSmaller, func(own, class *configSpec) {
		own.SessionGrace = shorter(own.SessionGrace, class.SessionGrace, 0, durationOf)
	}},
	"CredentialOverlap": {takeSmaller, func(own, class *configSpec) {
		absent := config.DefaultCredentialOverlap * time.Second
		own.CredentialOverlap = shorter(own.CredentialOverlap, class.CredentialOverlap, absent, durationOf)
	}},
	"RequireReferenceGrants": {enableEither, func(own, class *configSpec) {
		own.RequireReferenceGrants = own.RequireReferenceGrants || class.RequireReferenceGrants
	}},
	"LoadBalancerServiceAnnotations": {joinBoth, func(own, class *configSpec) {
		if both := maps.Clone(class.LoadBalancerServiceAnnotations); both != nil {
			maps.Copy(both, own.LoadBalancerServiceAnnotations)
			own.LoadBalancerServiceAnnotations = both
		}
	}},
	"UserQuota":       {takeSmaller, func(own, class *configSpec) { lower(&own.UserQuota, class.UserQuota) }},
	"SourceQuota":     {takeSmaller, func(own, class *configSpec) { lower(&own.SourceQuota, class.SourceQuota) }},
	"SessionByteRate": {takeSmaller, func(own, class *configSpec) { lower(&own.SessionByteRate, class.SessionByteRate) }},
	"UserByteRate":    {takeSmaller, func(own, class *configSpec) { lower(&own.UserByteRate, class.UserByteRate) }},
	"DeniedBackends": {joinBoth, func(own, class *configSpec) {
		both := slices.Clone(deniedBackends(class))
		for _, d := range deniedBackends(own) {
			same := func(known stunnerv1.DeniedBackend) bool { return reflect.DeepEqual(known, d) }
			if !slices.ContainsFunc(both, same) {
				both = append(both, d)
			}
		}
		own.DeniedBackends = both
	}},
	"DeniedPrefixes": {joinBoth, func(own, class *configSpec) {
		own.DeniedPrefixes = slices.Concat(class.DeniedPrefixes, own.DeniedPrefixes)
	}},
	"AllowedPrefixes": {takeClass, func(own, class *configSpec) { own.AllowedPrefixes = class.AllowedPrefixes }},
	"Budget":          {takeSmaller, func(own, class *configSpec) { own.Budget = smallerBudget(own.Budget, class.Budget) }},
	"LegacyGrants":    {takeClass, func(own, class *configSpec) { own.LegacyGrants = class.LegacyGrants }},
	"ClusterAccess":   {takeClass, func(own, class *configSpec) { own.ClusterAccess = class.ClusterAccess }},
	"NodeAddresses":   {takeClass, func(own, class *configSpec) { own.NodeAddresses = class.NodeAddresses }},
	"LoadBalancerProvider": {takeClass, func(own, class *configSpec) {
		own.LoadBalancerProvider = class.LoadBalancerProvider
	}},
	"AllowedAddresses": {takeClass, func(own, class *configSpec) { own.AllowedAddresses = class.AllowedAddresses }},
	"SigningKey": {enableEither, func(own, class *configSpec) {
		if own.SigningKey != stunnerv1.SigningKeyPerGateway {
			own.SigningKey = class.SigningKey
		}
	}},
	"STUNMode": {enableEither, func(own, class *configSpec) { own.STUNMode = own.STUNMode || class.STUNMode }},
}

// defaultLifetime applies if spec.authLifetime is unset.
const defaultLifetime = 24 * time.Hour

// lower sets own to the smaller of two limits, where 0 means unlimited.
func lower[N int32 | int64](own *N, class N) {
	if *own == 0 || class != 0 && class < *own {
		*own = class
	}
}

// smallerBudget returns a budget whose fields are the smaller limits of two budgets. An unset field counts as its
// default. If own is nil, class is returned. If class is nil, own is compared with the defaults, because a class
// without a budget has the defaults.
func smallerBudget(own, class *stunnerv1.Budget) *stunnerv1.Budget {
	if own == nil {
		return class
	}
	a, b := own.WithDefaults(), class.WithDefaults()
	return &stunnerv1.Budget{
		Routes:                min(a.Routes, b.Routes),
		EndpointsPerRoute:     min(a.EndpointsPerRoute, b.EndpointsPerRoute),
		Endpoints:             min(a.Endpoints, b.Endpoints),
		EndpointsPerNamespace: min(a.EndpointsPerNamespace, b.EndpointsPerNamespace),
	}
}

// shorter returns the shorter of two durations. If class is nil, own is returned. If own is nil, its length is absent.
func shorter[T any](own, class *T, absent time.Duration, length func(T) time.Duration) *T {
	if class == nil {
		return own
	}
	wanted := absent
	if own != nil {
		wanted = length(*own)
	}
	if length(*class) < wanted {
		return class
	}
	return own
}

// durationOf parses a duration. An invalid duration counts as 0, so that an error never lengthens a session or a
// lifetime.
func durationOf(d gwapiv1.Duration) time.Duration {
	parsed, _ := time.ParseDuration(string(d))
	return parsed
}

// mergeGatewayConfigs returns own, merged with the GatewayConfig of the class. With OwnConfigsAllow, only the fields
// with the rule takeClass are merged.
func mergeGatewayConfigs(own, class *stunnerv1.GatewayConfig, how OwnConfigs) *stunnerv1.GatewayConfig {
	effective := *own
	for _, f := range fieldMerges {
		if f.merge != nil && (how != OwnConfigsAllow || f.rule == takeClass) {
			f.merge(&effective.Spec, &class.Spec)
		}
	}
	return &effective
}
