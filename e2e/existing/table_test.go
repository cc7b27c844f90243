package existing

// Reasons why tests fail.
const (
	conflict = "a GatewayClass also has condition ControllerConflict, and the test wants one condition"
	spread   = "pods in the network of their node have an anti-affinity, because two cannot have the same ports"
	partly   = "a Gateway with an invalid listener is Programmed, because its other listeners serve"
)

// Groups of tests.
const (
	minimal    = "When creating a minimal set of API resources: "
	twoGws     = "When creating 2 Gateways: "
	twoClasses = "When creating 2 GatewayClasses and Gateways: "
)

// deviations are the tests that fail, with the reason.
var deviations = map[string]string{
	minimal + "should set the GatewayClass status":                            conflict,
	minimal + "should set the status correctly":                               conflict,
	minimal + "should survive converting the route to v1a2 route":             conflict,
	minimal + "should survive masking the v1a2 route with a stunner.v1 route": conflict,
	minimal + "should create a Deployment for the Gateway":                    spread,
	twoGws + "should set the GatewayClass status":                             conflict,
	twoGws + "should set the status of Gateway 2":                             partly,
	twoClasses + "should set the status of GatewayClass 1":                    conflict,
	twoClasses + "should set the status of GatewayClass 2":                    conflict,
	twoClasses + "should create a Deployment for Gateway 2":                   spread,
}
