package tenant

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// requests is more than the auth service answers at once to one source, see insideRates.
const requests = 300

// insideRates are flags of the administrator: the rate limit for one address in the cluster.
var insideRates = []string{"--cluster-rate-limit=10", "--cluster-rate-burst=100"}

// authAttempts: the auth service gives a tenant no credential for Gateways of others, and gives others none for those
// of a tenant.
func authAttempts() []attempt {
	return []attempt{
		{
			name:  "a Gateway of the tenant is offered to others",
			apply: gateway(`, addresses: [{type: Hostname, value: turn.tenant.example.net}]`),
			try: func(n *tenant) {
				n.told("gateway/door", `Accepted=`)
				n.isNotOffered("turn.tenant.example.net")
			},
		},
		{
			name:  "a Gateway of the tenant uses the host name of the victim's",
			apply: gateway(`, addresses: [{type: Hostname, value: turn.victim.example.net}]`),
			try:   func(n *tenant) { n.isNotOffered("turn.victim.example.net") },
		},
		{
			name: "a Gateway of the tenant has the first name in alphabetical order",
			apply: strings.ReplaceAll(
				gateway(`, addresses: [{type: Hostname, value: turn.first.example.net}]`), "name: door}", "name: aaa}",
			),
			try: func(n *tenant) { n.isNotOffered("turn.first.example.net") },
		},
		{
			name: "a caller without a token requests the victim's Gateway",
			try: func(n *tenant) {
				for _, body := range []string{
					`{"gateways":[{"namespace":"victim","name":"front-door"}]}`,
					`{"gateways":[{"namespace":"victim","name":"front-door","listener":"udp"}]}`,
				} {
					code, answer := n.post(nil, body)
					if code != http.StatusForbidden && code != http.StatusNotFound ||
						strings.Contains(string(answer), balanced) {
						n.Errorf("%s: status %d: %s", body, code, answer)
					}
				}
				for _, path := range []string{
					"/?service=turn&namespace=victim", "/ice?namespace=victim&gateway=front-door",
					"/ice?service=turn&namespace=victim&public-addr=example.net",
				} {
					code, answer := n.get(path, nil)
					if code != http.StatusForbidden && code != http.StatusNotFound ||
						strings.Contains(string(answer), "turn:") {
						n.Errorf("%s: status %d: %s", path, code, answer)
					}
				}
			},
		},
		{
			name: "a caller without a token requests all Gateways",
			try: func(n *tenant) {
				for _, path := range []string{"/?service=turn", "/ice", "/ice?service=turn&public-addr=example.net"} {
					if code, answer := n.get(path, nil); strings.Contains(string(answer), "turn:") {
						n.Errorf("%s: status %d: %s", path, code, answer)
					}
				}
				if code, answer := n.post(nil, `{}`); strings.Contains(string(answer), balanced) {
					n.Errorf("a request without Gateways: status %d: %s", code, answer)
				}
			},
		},
		{
			name: "a pod sends requests continuously",
			try: func(n *tenant) {
				if limited := n.limited(func(int) http.Header { return nil }); limited == 0 {
					n.Errorf("%d concurrent requests, and none gets 429", requests)
				}
			},
		},
		{
			name: "a pod forges headers with the addresses of others",
			try: func(n *tenant) {
				for _, form := range []string{
					"9.9.9.%d", "9.9.9.%d:1234", "[2001:db8::%d]:1234", "unknown%d", `for="[2001:db8::%d]"`,
				} {
					if limited := n.limited(func(i int) http.Header {
						value := fmt.Sprintf(form, i%250+1)
						return http.Header{
							"X-Forwarded-For": {value}, "Forwarded": {"for=" + value}, "X-Real-Ip": {value},
						}
					}); limited == 0 {
						n.Errorf(
							"with X-Forwarded-For %s, %d concurrent requests, and none gets 429", form,
							requests,
						)
					}
				}
			},
		},
		{
			name:  "a credential for the tenant's Gateway is valid at the victim's",
			apply: gateway(""),
			try: func(n *tenant) {
				theirs := house.victim.doors["victim/front-door"].before.Auth
				minted, err := n.config("door").Auth.Authority().Mint("mallory", time.Hour, time.Now())
				n.must(err)
				verified, err := theirs.Authority().Verify(minted.Username, time.Now())
				if err == nil &&
					string(credential.Key(minted.Username, theirs.Realm, minted.Password)) == string(verified.Key) {
					n.Error("it is")
				}
			},
		},
		{
			name: "the auth service is compromised",
			try: func(n *tenant) {
				_, body := n.ask(readFile(n, house.token), "/api/v1/configs")
				for _, secret := range house.markers.in(body) {
					if strings.HasPrefix(secret, "private key") {
						n.Errorf("it reads %s", secret)
					}
				}
				if strings.Contains(string(body), mediaPod) {
					n.Error("it reads the endpoints of the victim")
				}
			},
		},
	}
}

// isNotOffered checks that an answer to a request without gateways does not contain a host.
func (n *tenant) isNotOffered(host string) {
	n.Helper()
	for range 2 {
		if answer := n.iceServers(`{}`); strings.Contains(string(answer), host) {
			n.Errorf("response to a request without Gateways: %s", answer)
		}
		for _, path := range []string{"/ice", "/?service=turn"} {
			if _, answer := n.get(path, nil); strings.Contains(string(answer), host) {
				n.Errorf("%s: response %s", path, answer)
			}
		}
		n.settles() // the auth service gets the same changes as the victim's dataplane
		ctx, cancel := context.WithTimeout(n.Context(), patience)
		defer cancel()
		n.must(house.victim.proceeds(ctx, "victim/front-door"))
	}
}

// limited sends requests at once, and counts the answers with 429.
func (n *tenant) limited(header func(i int) http.Header) (count int) {
	n.Helper()
	for i := range requests {
		if code, _ := n.post(header(i), `{}`); code == http.StatusTooManyRequests {
			count++
		}
	}
	return count
}

// iceServers sends a request without a token, like a pod of the cluster.
func (n *tenant) iceServers(body string) []byte {
	n.Helper()
	_, answer := n.post(nil, body)
	return answer
}

// post requests ICE servers.
func (n *tenant) post(header http.Header, body string) (code int, answer []byte) {
	n.Helper()
	request, err := http.NewRequestWithContext(
		n.Context(), http.MethodPost, "http://"+house.service+"/v1/ice-servers", strings.NewReader(body),
	)
	n.must(err)
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set("Content-Type", "application/json")
	return n.answer(request)
}

// get requests ICE servers with the legacy API.
func (n *tenant) get(path string, header http.Header) (code int, answer []byte) {
	n.Helper()
	request, err := http.NewRequestWithContext(n.Context(), http.MethodGet, "http://"+house.service+path, nil)
	n.must(err)
	for key, values := range header {
		request.Header[key] = values
	}
	return n.answer(request)
}

func (n *tenant) answer(request *http.Request) (code int, answer []byte) {
	n.Helper()
	response, err := n.caller.Do(request)
	n.must(err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	n.must(err)
	n.finds("answer of the auth service", answer)
	return response.StatusCode, answer
}
