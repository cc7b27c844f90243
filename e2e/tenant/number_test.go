package tenant

import "fmt"

// numberAttempts: numbers that do not fit into the Go type of their field. If the API server stored one, no operator
// could decode the object, and the watch of its kind would fail for all namespaces.
func numberAttempts() (attempts []attempt) {
	const tooLarge32, tooLarge64 = "99999999999", "99999999999999999999"
	for field, spec := range map[string]string{
		"authLifetime": "authLifetime: " + tooLarge32, "userQuota": "userQuota: " + tooLarge32,
		"sourceQuota": "sourceQuota: " + tooLarge32, "sessionByteRate": "sessionByteRate: " + tooLarge64,
		"userByteRate": "userByteRate: " + tooLarge64, "budget.routes": "budget: {routes: " + tooLarge32 + "}",
		"budget.endpointsPerRoute":     "budget: {endpointsPerRoute: " + tooLarge32 + "}",
		"budget.endpoints":             "budget: {endpoints: " + tooLarge32 + "}",
		"budget.endpointsPerNamespace": "budget: {endpointsPerNamespace: " + tooLarge32 + "}",
	} {
		attempts = append(attempts, attempt{
			name: "a GatewayConfig with " + spec, refused: "spec." + field,
			apply: fmt.Sprintf("{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: own}, spec: {%s}}", spec),
		})
	}
	for _, field := range []string{"port", "endPort"} {
		attempts = append(attempts, attempt{
			name: "a UDPRoute with " + field + " " + tooLarge32, refused: `backendRefs\[0\].` + field,
			apply: routeTo(fmt.Sprintf(`name: media, %s: %s`, field, tooLarge32)),
		})
	}
	return attempts
}
