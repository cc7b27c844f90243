package tenant

import (
	"fmt"
	"strings"
)

// numberAttempts: numbers that do not fit into the Go type of their field. If the API server stored one, no operator
// could decode the object, and the watch of its kind would fail for all namespaces.
func numberAttempts() (all []attempt) {
	const tooLarge32, tooLarge64 = "99999999999", "99999999999999999999"
	for field, number := range map[string]string{
		"authLifetime": tooLarge32, "userQuota": tooLarge32, "sourceQuota": tooLarge32,
		"sessionByteRate": tooLarge64, "userByteRate": tooLarge64,
		"budget.routes": tooLarge32, "budget.endpointsPerRoute": tooLarge32, "budget.endpoints": tooLarge32,
		"budget.endpointsPerNamespace": tooLarge32,
	} {
		spec := fmt.Sprintf("%s: %s", field, number)
		if inner, ok := strings.CutPrefix(field, "budget."); ok {
			spec = fmt.Sprintf("budget: {%s: %s}", inner, number)
		}
		all = append(all, attempt{
			name:    "a GatewayConfig with the number " + number + " in " + field,
			apply:   fmt.Sprintf("{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: own}, spec: {%s}}", spec),
			refused: "spec." + field,
		})
	}
	for _, field := range []string{"port", "endPort"} {
		all = append(all, attempt{
			name: "a UDPRoute with the number " + tooLarge32 + " in " + field,
			apply: fmt.Sprintf(`{apiVersion: stunner.l7mp.io/v1, kind: UDPRoute, metadata: {name: way},
				spec: {parentRefs: [{name: door}], rules: [{backendRefs: [{name: media, %s: %s}]}]}}`, field, tooLarge32),
			refused: `backendRefs\[0\].` + field,
		})
	}
	return all
}
