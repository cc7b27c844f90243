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

// deniedBackends returns spec.deniedBackends with its default, which an object that was not read from an API server may
// lack.
func deniedBackends(gc *stunnerv1.GatewayConfigSpec) []stunnerv1.DeniedBackend {
	if gc.DeniedBackends == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return gc.DeniedBackends
}

// rank is the way in which a field of a Gateway's own GatewayConfig is merged with that of the GatewayConfig of its
// class.
type rank string

const (
	// free fields have the value of the own GatewayConfig.
	free rank = "own"
	// reserved fields have the value of the class.
	reserved rank = "class"
	// either fields are true if one of the two is true.
	either rank = "either"
	// union fields have the entries of both. If both have an entry of the same name, the own one is used.
	union rank = "union"
	// least fields have the smaller value. 0 and unset mean unlimited.
	least rank = "least"
	// admitted fields name an object of the class, or one that admits the namespace of the Gateway.
	admitted rank = "admitted"
)

// ruling is the merge rule of one field. narrow changes the field of own; nil leaves it as it is.
type ruling struct {
	rank   rank
	narrow func(own, class *stunnerv1.GatewayConfigSpec)
}

// rulings has an entry for every field of a GatewayConfig. The authentication fields are free as a whole: a Gateway
// with its own GatewayConfig never uses credentials of its class.
var rulings = map[string]ruling{
	"Dataplane":    {rank: admitted}, // see dataplaneFor in parameters.go
	"LogLevel":     {rank: free},
	"Realm":        {rank: free},
	"AuthType":     {rank: free},
	"UserName":     {rank: free},
	"Password":     {rank: free},
	"SharedSecret": {rank: free},
	"AuthRef":      {rank: free},
	"AuthLifetime": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
		own.AuthLifetime = shorter(own.AuthLifetime, class.AuthLifetime, defaultLifetime, seconds)
	}},
	"SessionGrace": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.SessionGrace = shorter(own.SessionGrace, class.SessionGrace, 0, durationOf)
	}},
	"CredentialOverlap": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		absent := config.DefaultCredentialOverlap * time.Second
		own.CredentialOverlap = shorter(own.CredentialOverlap, class.CredentialOverlap, absent, durationOf)
	}},
	"RequireReferenceGrants": {either, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.RequireReferenceGrants = own.RequireReferenceGrants || class.RequireReferenceGrants
	}},
	"LoadBalancerServiceAnnotations": {union, func(own, class *stunnerv1.GatewayConfigSpec) {
		both := maps.Clone(class.LoadBalancerServiceAnnotations)
		if both == nil {
			return
		}
		maps.Copy(both, own.LoadBalancerServiceAnnotations)
		own.LoadBalancerServiceAnnotations = both
	}},
	"UserQuota": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.UserQuota = smaller(own.UserQuota, class.UserQuota)
	}},
	"SourceQuota": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.SourceQuota = smaller(own.SourceQuota, class.SourceQuota)
	}},
	"SessionByteRate": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.SessionByteRate = smaller(own.SessionByteRate, class.SessionByteRate)
	}},
	"UserByteRate": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.UserByteRate = smaller(own.UserByteRate, class.UserByteRate)
	}},
	"DeniedBackends": {union, func(own, class *stunnerv1.GatewayConfigSpec) {
		both := slices.Clone(deniedBackends(class))
		for _, d := range deniedBackends(own) {
			if !slices.ContainsFunc(
				both, func(known stunnerv1.DeniedBackend) bool { return reflect.DeepEqual(known, d) },
			) {
				both = append(both, d)
			}
		}
		own.DeniedBackends = both
	}},
	"Budget": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.Budget = smallerBudget(own.Budget, class.Budget)
	}},
	"ClusterAccess": {reserved, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.ClusterAccess = class.ClusterAccess
	}},
	"AllowedAddresses": {reserved, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.AllowedAddresses = class.AllowedAddresses
	}},
	"SigningKey": {either, func(own, class *stunnerv1.GatewayConfigSpec) {
		if own.SigningKey != stunnerv1.SigningKeyPerGateway {
			own.SigningKey = class.SigningKey
		}
	}},
	"STUNMode": {
		either, func(own, class *stunnerv1.GatewayConfigSpec) { own.STUNMode = own.STUNMode || class.STUNMode },
	},
}

// defaultLifetime is the lifetime if spec.authLifetime is unset.
const defaultLifetime = 24 * time.Hour

// smaller returns the smaller limit; 0 means unlimited.
func smaller[N int32 | int64](own, class N) N {
	if own == 0 || class != 0 && class < own {
		return class
	}
	return own
}

// smallerBudget returns the smaller limit of each field. An unset field has its default.
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

// shorter returns the shorter duration. If the class has none, there is no limit. If own is unset, its duration is
// absent.
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

// durationOf returns 0 for an invalid duration: an error must not lengthen a session or a lifetime.
func durationOf(d gwapiv1.Duration) time.Duration {
	parsed, _ := time.ParseDuration(string(d))
	return parsed
}

// narrowed merges a Gateway's own GatewayConfig with that of its class.
func narrowed(own, class *stunnerv1.GatewayConfig, how OwnConfigs) *stunnerv1.GatewayConfig {
	effective := *own
	for _, f := range rulings {
		if f.narrow != nil && (how != OwnConfigsAllow || f.rank == reserved) {
			f.narrow(&effective.Spec, &class.Spec)
		}
	}
	return &effective
}
