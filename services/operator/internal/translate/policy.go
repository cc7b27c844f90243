package translate

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// deniedBackends returns spec.deniedBackends, or the default if it is unset. The API server sets the default, but the
// empty GatewayConfig that ownParameters makes lacks it.
func deniedBackends(gc *stunnerv1.GatewayConfigSpec) []stunnerv1.DeniedBackend {
	if gc.DeniedBackends == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return gc.DeniedBackends
}

// rank is the way in which a field of two GatewayConfigs is merged: "own" is the GatewayConfig in
// spec.infrastructure.parametersRef of a Gateway, "class" is that of its GatewayClass.
type rank string

const (
	// free means that the value of own is used.
	free rank = "own"
	// reserved means that the value of class is used.
	reserved rank = "class"
	// either means that the field is enabled if one of the two enables it.
	either rank = "either"
	// union means that the entries of both are used. If both have an annotation of the same name, that of own is used.
	union rank = "union"
	// least means that the smaller limit is used. For quotas and rates, 0 means unlimited. An unset duration or budget
	// has its default.
	least rank = "least"
	// admitted means that own may refer to the object that class refers to, or to one that allows the namespace of the
	// Gateway.
	admitted rank = "admitted"
)

// ruling is the merge rule of one field.
type ruling struct {
	rank rank
	// narrow sets the field in own to the merged value; nil leaves own unchanged.
	narrow func(own, class *configSpec)
}

type configSpec = stunnerv1.GatewayConfigSpec

// rulings has an entry for every field of a GatewayConfig. All authentication fields are free, so that a Gateway with
// spec.infrastructure.parametersRef never uses credentials of its class.
var rulings = map[string]ruling{
	"Dataplane":    {rank: admitted}, // see dataplaneFor in parameters.go
	"LogLevel":     {rank: free},
	"Realm":        {rank: free},
	"AuthType":     {rank: free},
	"UserName":     {rank: free},
	"Password":     {rank: free},
	"SharedSecret": {rank: free},
	"AuthRef":      {rank: free},
	"AuthLifetime": {least, func(own, class *configSpec) {
		seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
		own.AuthLifetime = shorter(own.AuthLifetime, class.AuthLifetime, defaultLifetime, seconds)
	}},
	"SessionGrace": {least, func(own, class *configSpec) {
		own.SessionGrace = shorter(own.SessionGrace, class.SessionGrace, 0, durationOf)
	}},
	"CredentialOverlap": {least, func(own, class *configSpec) {
		absent := config.DefaultCredentialOverlap * time.Second
		own.CredentialOverlap = shorter(own.CredentialOverlap, class.CredentialOverlap, absent, durationOf)
	}},
	"RequireReferenceGrants": {either, func(own, class *configSpec) {
		own.RequireReferenceGrants = own.RequireReferenceGrants || class.RequireReferenceGrants
	}},
	"LoadBalancerServiceAnnotations": {union, func(own, class *configSpec) {
		if both := maps.Clone(class.LoadBalancerServiceAnnotations); both != nil {
			maps.Copy(both, own.LoadBalancerServiceAnnotations)
			own.LoadBalancerServiceAnnotations = both
		}
	}},
	"UserQuota":       {least, func(own, class *configSpec) { lower(&own.UserQuota, class.UserQuota) }},
	"SourceQuota":     {least, func(own, class *configSpec) { lower(&own.SourceQuota, class.SourceQuota) }},
	"SessionByteRate": {least, func(own, class *configSpec) { lower(&own.SessionByteRate, class.SessionByteRate) }},
	"UserByteRate":    {least, func(own, class *configSpec) { lower(&own.UserByteRate, class.UserByteRate) }},
	"DeniedBackends": {union, func(own, class *configSpec) {
		both := slices.Clone(deniedBackends(class))
		for _, d := range deniedBackends(own) {
			same := func(known stunnerv1.DeniedBackend) bool { return reflect.DeepEqual(known, d) }
			if !slices.ContainsFunc(both, same) {
				both = append(both, d)
			}
		}
		own.DeniedBackends = both
	}},
	"Budget":           {least, func(own, class *configSpec) { own.Budget = smallerBudget(own.Budget, class.Budget) }},
	"ClusterAccess":    {reserved, func(own, class *configSpec) { own.ClusterAccess = class.ClusterAccess }},
	"AllowedAddresses": {reserved, func(own, class *configSpec) { own.AllowedAddresses = class.AllowedAddresses }},
	"SigningKey": {either, func(own, class *configSpec) {
		if own.SigningKey != stunnerv1.SigningKeyPerGateway {
			own.SigningKey = class.SigningKey
		}
	}},
	"STUNMode": {either, func(own, class *configSpec) { own.STUNMode = own.STUNMode || class.STUNMode }},
}

// defaultLifetime applies if spec.authLifetime is unset.
const defaultLifetime = 24 * time.Hour

// lower sets own to the smaller of two limits, where 0 means unlimited.
func lower[N int32 | int64](own *N, class N) {
	if *own == 0 || class != 0 && class < *own {
		*own = class
	}
}

// smallerBudget returns the smaller limit for each field of a budget. An unset field has its default.
func smallerBudget(own, class *stunnerv1.Budget) *stunnerv1.Budget {
	if own == nil || class == nil {
		return cmp.Or(own, class)
	}
	a, b := own.WithDefaults(), class.WithDefaults()
	return &stunnerv1.Budget{
		Routes:                min(a.Routes, b.Routes),
		EndpointsPerRoute:     min(a.EndpointsPerRoute, b.EndpointsPerRoute),
		Endpoints:             min(a.Endpoints, b.Endpoints),
		EndpointsPerNamespace: min(a.EndpointsPerNamespace, b.EndpointsPerNamespace),
	}
}

// shorter returns the shorter of two durations. If class is nil, it sets no limit. If own is nil, it counts as the
// duration absent.
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

// durationOf returns 0 for an invalid duration, so that an error never lengthens a session or a lifetime.
func durationOf(d gwapiv1.Duration) time.Duration {
	parsed, _ := time.ParseDuration(string(d))
	return parsed
}

// narrowed returns own, merged with the GatewayConfig of the class. With OwnConfigsAllow, only the reserved fields are
// merged.
func narrowed(own, class *stunnerv1.GatewayConfig, how OwnConfigs) *stunnerv1.GatewayConfig {
	effective := *own
	for _, f := range rulings {
		if f.narrow != nil && (how != OwnConfigsAllow || f.rank == reserved) {
			f.narrow(&effective.Spec, &class.Spec)
		}
	}
	return &effective
}
