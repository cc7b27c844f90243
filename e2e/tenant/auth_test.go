package tenant

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// requests is higher than the burst of requests that the auth service allows one source, see authArguments.
const requests = 300

// authArguments are flags of the auth service. As by default, it offers the Gateways of its administrator. The rate
// limit for one address in the cluster is low.
var authArguments = []string{
	"--gateways=" + system + "/*", "--cluster-rate-limit=10", "--cluster-rate-burst=100", "--log-level=all:TRACE",
}

// tenantHost is the address that some Gateways of tenants request.
const tenantHost = "turn.tenant.example.net"

// authAttempts: the auth service gives a tenant no credential for Gateways of others, and gives others none for
// Gateways of the tenant.
func authAttempts() []attempt {
	named := gateway(`, addresses: [{type: Hostname, value: ` + tenantHost + `}]`)
	return []attempt{
		// The auth service has these Gateways during the other attempts, see othersAreAsBefore.
		{name: "a Gateway of the tenant is offered to others", apply: named, object: "gateway/door", told: `Accepted=`},
		{
			name:  "a Gateway of the tenant has the first name in alphabetical order",
			apply: strings.ReplaceAll(named, "name: door}", "name: aaa}"), object: "gateway/aaa", told: `Accepted=`,
		},
		{
			name: "a caller without a token requests a Gateway of others",
			try: func(n *tenant) {
				for _, ask := range [][2]string{
					{"", `{"gateways":[{"namespace":"media-1","name":"gateway0"}]}`},
					{"", `{"gateways":[{"namespace":"media-1","name":"gateway0","listener":"udp"}]}`},
					{"/?service=turn&namespace=media-1"}, {"/ice?namespace=media-1&gateway=gateway0"},
					{"/ice?service=turn&namespace=media-1&public-addr=example.net"},
				} {
					code, answer := n.iceServers(ask[0], ask[1], nil)
					if code != http.StatusForbidden && code != http.StatusNotFound ||
						strings.Contains(answer, run.balanced) || strings.Contains(answer, `"turn:`) {
						n.Errorf("%s: status %d: %s", ask, code, answer)
					}
				}
			},
		},
		{
			name: "a caller without a token requests all Gateways",
			try: func(n *tenant) {
				for _, ask := range [][2]string{
					{"/?service=turn"}, {"/ice"}, {"/ice?service=turn&public-addr=example.net"}, {"", `{}`},
				} {
					code, answer := n.iceServers(ask[0], ask[1], nil)
					if strings.Contains(answer, run.balanced) || strings.Contains(answer, "turn:") {
						n.Errorf("%s: status %d: %s", ask, code, answer)
					}
				}
			},
		},
		{
			name: "a pod sends requests continuously, and forges headers with the addresses of others",
			try: func(n *tenant) {
				for _, form := range []string{
					"", "9.9.9.%d", "9.9.9.%d:1234", "[2001:db8::%d]:1234", "unknown%d", `for="[2001:db8::%d]"`,
				} {
					limited := 0
					for i := range requests {
						header := http.Header{}
						if form != "" {
							value := fmt.Sprintf(form, i%250+1)
							header = http.Header{
								"X-Forwarded-For": {value}, "Forwarded": {"for=" + value}, "X-Real-Ip": {value},
							}
						}
						if code, _ := n.iceServers("", `{}`, header); code == http.StatusTooManyRequests {
							limited++
						}
					}
					if limited == 0 {
						n.Errorf("with X-Forwarded-For %q, %d requests, and none gets 429", form, requests)
					}
				}
			},
		},
		{
			name: "a credential for the tenant's Gateway is valid at that of others", apply: gateway(""),
			try: func(n *tenant) {
				theirs := run.before[first].Auth
				minted, err := n.config("door").Auth.Authority().Mint("mallory", time.Hour, time.Now())
				n.must(err)
				verified, err := theirs.Authority().Verify(minted.Username, time.Now(), 0)
				if err == nil &&
					string(credential.Key(minted.Username, theirs.Realm, minted.Password)) == string(verified.Key) {
					n.Error("it is")
				}
			},
		},
		{
			name: "the auth service is compromised",
			try: func(n *tenant) {
				token, err := run.tokenOf(n.Context(), system, "stunner-auth", nil)
				n.must(err)
				_, body, err := run.get(n.Context(), n.caller, token, "/api/v1/configs")
				n.must(err)
				for _, secret := range run.markers.in(body) {
					if strings.HasPrefix(secret, "private key") {
						n.Errorf("it reads %s", secret)
					}
				}
				if strings.Contains(string(body), mediaServer) {
					n.Error("it reads the endpoints of others")
				}
			},
		},
	}
}

// isNotOffered checks that answers to requests without Gateways contain none of the Gateways of tenants.
func (n *tenant) isNotOffered() {
	n.Helper()
	for _, ask := range [][2]string{{"", `{}`}, {"/ice"}, {"/?service=turn"}} {
		if code, answer := n.iceServers(ask[0], ask[1], nil); strings.Contains(answer, tenantHost) {
			n.Errorf("%s: status %d: %s", ask, code, answer)
		}
	}
}
