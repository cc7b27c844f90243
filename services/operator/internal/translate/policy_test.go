package translate

import (
	"reflect"
	"testing"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Every field of a GatewayConfig needs a decision: a tenant may set it, or the class limits it.
func TestEveryFieldOfAGatewayConfigHasAMergeRule(t *testing.T) {
	of := reflect.TypeFor[stunnerv1.GatewayConfigSpec]()
	for i := range of.NumField() {
		r, found := fieldMerges[of.Field(i).Name]
		if !found {
			t.Errorf("%s has no merge rule in fieldMerges", of.Field(i).Name)
		}
		if (r.merge == nil) != (r.rule == keepOwn || r.rule == allowReference) {
			t.Errorf("%s: rule %s, function %t", of.Field(i).Name, r.rule, r.merge != nil)
		}
	}
	for name := range fieldMerges {
		if _, known := of.FieldByName(name); !known {
			t.Errorf("%s has a merge rule but is not a field", name)
		}
	}
}

// Each field of any type is merged by its rule.
func TestMergeRules(t *testing.T) {
	of := reflect.TypeFor[stunnerv1.GatewayConfigSpec]()
	for i := range of.NumField() {
		name := of.Field(i).Name
		few, many, unset := sample(t, of.Field(i).Type, 1), sample(t, of.Field(i).Type, 2), reflect.Zero(
			of.Field(i).Type,
		)
		check := func(own, class, want reflect.Value) {
			t.Helper()
			var o, c stunnerv1.GatewayConfig
			reflect.ValueOf(&o.Spec).Elem().Field(i).Set(own)
			reflect.ValueOf(&c.Spec).Elem().Field(i).Set(class)
			got := reflect.ValueOf(mergeGatewayConfigs(&o, &c, OwnConfigsRestricted).Spec).Field(i)
			if !reflect.DeepEqual(got.Interface(), want.Interface()) {
				t.Errorf("%s (%s): own %v, class %v: %v, want %v", name, fieldMerges[name].rule, own, class, got, want)
			}
		}
		switch fieldMerges[name].rule {
		case keepOwn, allowReference:
			check(many, few, many)
			check(unset, few, unset)
		case takeClass:
			check(many, few, few)
			check(many, unset, unset)
			check(unset, many, many)
		case takeSmaller:
			check(few, many, few)
			check(many, few, few)
			check(many, unset, many)
			if of.Field(i).Type.Kind() != reflect.Pointer { // 0 means unlimited; an unset duration has a default
				check(unset, few, few)
			}
		case enableEither:
			check(many, unset, many)
			check(unset, many, many)
		case joinBoth:
			for _, both := range []reflect.Value{few, many} {
				var o, c stunnerv1.GatewayConfig
				reflect.ValueOf(&o.Spec).Elem().Field(i).Set(few)
				reflect.ValueOf(&c.Spec).Elem().Field(i).Set(many)
				if got := reflect.ValueOf(mergeGatewayConfigs(&o, &c, OwnConfigsRestricted).Spec).Field(i); !contains(got, both) {
					t.Errorf("%s: %v lacks what is in %v", name, got, both)
				}
			}
		default:
			t.Errorf("%s has rule %q", name, fieldMerges[name].rule)
		}
	}
}

// sample returns a value for a field. It grows with n.
func sample(t *testing.T, of reflect.Type, n int) reflect.Value {
	t.Helper()
	switch v := reflect.New(of).Elem(); v.Interface().(type) {
	case bool:
		return reflect.ValueOf(true)
	case int32, int64:
		v.SetInt(int64(n))
		return v
	case *int32:
		return reflect.ValueOf(new(int32(n)))
	case *gwapiv1.Duration:
		return reflect.ValueOf(new([]gwapiv1.Duration{"0s", "1s", "2s"}[n]))
	case *stunnerv1.Budget:
		k := int32(n)
		return reflect.ValueOf(
			&stunnerv1.Budget{Routes: k, EndpointsPerRoute: k, Endpoints: k, EndpointsPerNamespace: k},
		)
	case stunnerv1.SigningKey:
		return reflect.ValueOf(stunnerv1.SigningKeyPerGateway)
	case map[string]string:
		return reflect.ValueOf(map[string]string{string(rune('a' + n)): "x"})
	case []stunnerv1.DeniedBackend:
		return reflect.ValueOf([]stunnerv1.DeniedBackend{{Namespace: string(rune('a' + n))}})
	case []stunnerv1.CIDR:
		return reflect.ValueOf([]stunnerv1.CIDR{stunnerv1.CIDR(rune('a' + n))})
	case *stunnerv1.SecretValue:
		return reflect.ValueOf(stunnerv1.SecretFrom(stunnerv1.SecretKeyReference{Name: string(rune('a' + n))}))
	case *gwapiv1.SecretObjectReference:
		return reflect.ValueOf(&gwapiv1.SecretObjectReference{Name: gwapiv1.ObjectName(rune('a' + n))})
	default:
		if of.Kind() != reflect.String {
			t.Fatalf("no sample of type %s: add one", of)
		}
		v.SetString(string(rune('a' + n)))
		return v
	}
}

// contains reports whether a list or a map has all entries of another.
func contains(all, some reflect.Value) bool {
	if all.Kind() == reflect.Map {
		for _, key := range some.MapKeys() {
			if !all.MapIndex(key).IsValid() {
				return false
			}
		}
		return true
	}
	for i := range some.Len() {
		found := false
		for j := range all.Len() {
			found = found || reflect.DeepEqual(all.Index(j).Interface(), some.Index(i).Interface())
		}
		if !found {
			return false
		}
	}
	return true
}

// A duration in the GatewayConfig of the class also limits a duration that is unset in the GatewayConfig of a Gateway,
// because that counts as its default.
func TestADefaultTimeIsBoundToo(t *testing.T) {
	var own, class stunnerv1.GatewayConfig
	class.Spec.AuthLifetime, class.Spec.SessionGrace, class.Spec.CredentialOverlap = new(int32(60)), new(
		gwapiv1.Duration("10m"),
	), new(gwapiv1.Duration("0s"))
	got := mergeGatewayConfigs(&own, &class, OwnConfigsRestricted).Spec
	if got.AuthLifetime == nil || *got.AuthLifetime != 60 || got.SessionGrace != nil || got.CredentialOverlap == nil ||
		*got.CredentialOverlap != "0s" {
		t.Errorf("lifetime %v, grace %v, overlap %v", got.AuthLifetime, got.SessionGrace, got.CredentialOverlap)
	}
}

// A class without a budget has the default budget, which a Gateway's own GatewayConfig cannot widen.
func TestOwnBudgetStaysBelowTheDefault(t *testing.T) {
	var own, class stunnerv1.GatewayConfig
	own.Spec.Budget = &stunnerv1.Budget{Routes: 1, Endpoints: stunnerv1.DefaultBudgetEndpoints + 1}
	got := mergeGatewayConfigs(&own, &class, OwnConfigsRestricted).Spec.Budget
	if got == nil || got.Routes != 1 || got.Endpoints != stunnerv1.DefaultBudgetEndpoints {
		t.Errorf("budget %+v, want 1 route and %d endpoints", got, stunnerv1.DefaultBudgetEndpoints)
	}
}
