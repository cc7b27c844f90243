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

// deniedBackends are the Services that a GatewayConfig denies. One that was read from elsewhere than an API server may leave the default out.
func deniedBackends(gc *stunnerv1.GatewayConfigSpec) []stunnerv1.DeniedBackend {
	if gc.DeniedBackends == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return gc.DeniedBackends
}

// rank says which of two GatewayConfigs decides about a field: the one that a Gateway names itself, or that of its class.
type rank string

const (
	// free fields are the Gateway's own.
	free rank = "own"
	// reserved fields are those of the class, whatever the Gateway's own says.
	reserved rank = "class"
	// either is true when one of the two says so.
	either rank = "either"
	// union has the entries of both; of one name the Gateway's own counts.
	union rank = "union"
	// least is the smaller of the two; 0 and unset are no bound.
	least rank = "least"
	// admitted is what the class names, or what admits the namespace of the Gateway.
	admitted rank = "admitted"
)

// ruling says which of two GatewayConfigs decides about one field, and changes the Gateway's own accordingly.
type ruling struct {
	rank   rank
	narrow func(own, class *stunnerv1.GatewayConfigSpec)
}

// rulings has an entry for every field of a GatewayConfig. What a GatewayConfig says about authentication is one whole: own credentials sign for the own
// Gateways only, and those of the class are not lent.
var rulings = map[string]ruling{
	"Dataplane":    {rank: admitted}, // see dataplaneFor
	"LogLevel":     {rank: free},
	"Realm":        {rank: free},
	"AuthType":     {rank: free},
	"UserName":     {rank: free},
	"Password":     {rank: free},
	"SharedSecret": {rank: free},
	"AuthRef":      {rank: free},
	"AuthLifetime": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.AuthLifetime = shorter(own.AuthLifetime, class.AuthLifetime, defaultLifetime, func(n int32) time.Duration { return time.Duration(n) * time.Second })
	}},
	"SessionGrace": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.SessionGrace = shorter(own.SessionGrace, class.SessionGrace, 0, durationOf)
	}},
	"CredentialOverlap": {least, func(own, class *stunnerv1.GatewayConfigSpec) {
		own.CredentialOverlap = shorter(own.CredentialOverlap, class.CredentialOverlap, config.DefaultCredentialOverlap*time.Second, durationOf)
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
	"UserQuota": {least, func(own, class *stunnerv1.GatewayConfigSpec) { own.UserQuota = smaller(own.UserQuota, class.UserQuota) }},
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
			if !slices.ContainsFunc(both, func(known stunnerv1.DeniedBackend) bool { return reflect.DeepEqual(known, d) }) {
				both = append(both, d)
			}
		}
		own.DeniedBackends = both
	}},
	"Budget":           {least, func(own, class *stunnerv1.GatewayConfigSpec) { own.Budget = smallerBudget(own.Budget, class.Budget) }},
	"ClusterAccess":    {reserved, func(own, class *stunnerv1.GatewayConfigSpec) { own.ClusterAccess = class.ClusterAccess }},
	"AllowedAddresses": {reserved, func(own, class *stunnerv1.GatewayConfigSpec) { own.AllowedAddresses = class.AllowedAddresses }},
	"SigningKey": {either, func(own, class *stunnerv1.GatewayConfigSpec) {
		if own.SigningKey != stunnerv1.SigningKeyPerGateway {
			own.SigningKey = class.SigningKey
		}
	}},
	"STUNMode": {either, func(own, class *stunnerv1.GatewayConfigSpec) { own.STUNMode = own.STUNMode || class.STUNMode }},
}

// defaultLifetime is what an authLifetime that is unset means.
const defaultLifetime = 24 * time.Hour

// smaller returns the smaller bound; 0 is none.
func smaller[N int32 | int64](own, class N) N {
	if own == 0 || class != 0 && class < own {
		return class
	}
	return own
}

// smallerBudget returns the smaller bound of each kind. What a budget leaves out has its default.
func smallerBudget(own, class *stunnerv1.Budget) *stunnerv1.Budget {
	if own == nil || class == nil {
		return cmp.Or(own, class)
	}
	a, b := own.WithDefaults(), class.WithDefaults()
	return &stunnerv1.Budget{
		Routes: min(a.Routes, b.Routes), EndpointsPerRoute: min(a.EndpointsPerRoute, b.EndpointsPerRoute),
		Endpoints: min(a.Endpoints, b.Endpoints), EndpointsPerNamespace: min(a.EndpointsPerNamespace, b.EndpointsPerNamespace),
	}
}

// shorter returns the shorter time. Where the class says none there is no bound; an own one that is unset means absent.
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

// durationOf is 0 for what cannot be read: it must lengthen nothing.
func durationOf(d gwapiv1.Duration) time.Duration {
	parsed, _ := time.ParseDuration(string(d))
	return parsed
}

// narrowed is the GatewayConfig of a Gateway under that of its class.
func narrowed(own, class *stunnerv1.GatewayConfig, how OwnConfigs) *stunnerv1.GatewayConfig {
	effective := *own
	for _, f := range rulings {
		if f.narrow != nil && (how != OwnConfigsAllow || f.rank == reserved) {
			f.narrow(&effective.Spec, &class.Spec)
		}
	}
	return &effective
}
