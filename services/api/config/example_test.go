package config_test

import (
	"fmt"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Parse sets defaults and replaces aliases by the canonical values. Unknown fields are returned, not refused.
func ExampleParse() {
	c, unknown, err := config.Parse([]byte(`
version: v1
admin: {name: media/edge}
auth: {type: plaintext, credentials: {username: user, password: pass}}
listeners:
- {name: media/edge/udp, protocol: UDP, port: 3478, routes: [media/sfu], color: blue}
clusters:
- {name: media/sfu, endpoints: ["10.0.0.0/24:<10000-20000>"]}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Auth.Type, c.Auth.Realm, c.Listeners[0].Protocol, c.Clusters[0].Type)
	fmt.Println("unknown:", unknown)
	fmt.Println("valid:", c.Validate() == nil)
	// Output:
	// static stunner.l7mp.io TURN-UDP STATIC
	// unknown: [listeners[0].color]
	// valid: true
}
