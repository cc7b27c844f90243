package rest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// The answers that existing clients of GET / and GET /ice get, byte for byte in their fields.

// J-10: answers of the TURN REST API equal fixed examples, for GET and POST.
func TestContractTurn(t *testing.T) {
	s := newService(t, open(), gateways()...)
	tests := map[string]struct {
		query string
		want  string
	}{
		"ephemeral": {
			"service=turn&username=alice&ttl=3600&namespace=media&gateway=oslo&dtls=false",
			`{"username":"1893456000:alice","password":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","ttl":3600,
			  "uris":["turn:203.0.113.7:3478?transport=udp","turn:203.0.113.7:3478?transport=tcp"]}`,
		},
		"DTLS is in, as it always was": {
			"service=turn&username=alice&ttl=3600&namespace=media&gateway=oslo",
			`{"username":"1893456000:alice","password":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","ttl":3600,
			  "uris":["turn:203.0.113.7:3478?transport=udp","turns:203.0.113.7:5349?transport=udp","turn:203.0.113.7:3478?transport=tcp"]}`,
		},
		"one listener": {
			"service=turn&username=alice&ttl=3600&namespace=media&gateway=oslo&listener=tcp",
			`{"username":"1893456000:alice","password":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","ttl":3600,
			  "uris":["turn:203.0.113.7:3478?transport=tcp"]}`,
		},
		"static, whoever asks": {
			"service=turn&username=alice&namespace=media&gateway=bergen",
			`{"username":"bergen","password":"fish:market","ttl":86400,"uris":["turn:198.51.100.20:3478?transport=udp"]}`,
		},
		"first of several": {
			"service=turn",
			`{"username":"bergen","password":"fish:market","ttl":86400,"uris":["turn:198.51.100.20:3478?transport=udp"]}`,
		},
		"lifetime of the gateway": {
			"service=turn&username=alice&namespace=short&gateway=lived&ttl=600&public-addr=turn.example.org",
			`{"username":"1893453000:alice","password":"` + mac(
				"1893453000:alice",
			) + `","ttl":600,"uris":["turn:turn.example.org:3478?transport=udp"]}`,
		},
		"no user name": {
			"service=turn&namespace=short",
			`{"username":"1893453000:","password":"` + mac(
				"1893453000:",
			) + `","ttl":600,"uris":["turn:203.0.113.8:3478?transport=udp"]}`,
		},
	}
	for name, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(name+" by "+method, func(t *testing.T) {
				sameJSON(t, s.do(t, httptest.NewRequest(method, "/?"+tt.query, nil)), tt.want)
			})
		}
	}
}

// mac returns the password of a user name under the secret of the test gateways.
func mac(username string) string {
	_, user, _ := strings.Cut(username, ":")
	c, err := credential.Authority{SharedSecret: "s3cret"}.Mint(user, 600*time.Second, now)
	if err != nil || c.Username != username {
		panic("test vector: " + c.Username)
	}
	return string(c.Password)
}

// J-10: requests of a Janus media server are answered: the key has two names, and POST repeats the query as a form.
func TestContractJanus(t *testing.T) {
	s := newService(t, open(), gateways()...)
	const query = "service=turn&api=4f3c&key=4f3c&username=1234567890123"
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r := httptest.NewRequest(method, "/?"+query, strings.NewReader(query))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := decode[rest.TurnAuth](t, s.do(t, r), http.StatusOK)
		if answer.Username == "" || answer.Password == "" || len(answer.Uris) == 0 {
			t.Errorf("%s: %+v", method, answer)
		}
	}
}

func TestContractIce(t *testing.T) {
	s := newService(t, open(), gateways()...)
	tests := map[string]struct {
		query string
		want  string
	}{
		"one gateway": {
			"service=turn&username=alice&ttl=3600&namespace=media&gateway=oslo&listener=udp",
			`{"iceServers":[{"username":"1893456000:alice","credential":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","urls":["turn:203.0.113.7:3478?transport=udp"]}],
			  "iceTransportPolicy":"all"}`,
		},
		"one entry for each gateway, those without address left out": {
			"username=alice&namespace=media&dtls=false&ttl=3600&iceTransportPolicy=relay",
			`{"iceServers":[
			    {"username":"bergen","credential":"fish:market","urls":["turn:198.51.100.20:3478?transport=udp"]},
			    {"username":"1893456000:alice","credential":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","urls":["turn:203.0.113.7:3478?transport=udp","turn:203.0.113.7:3478?transport=tcp"]}],
			  "iceTransportPolicy":"relay"}`,
		},
		"STUN only": {
			"namespace=stun&iceTransportPolicy=public",
			`{"iceServers":[{"urls":["stun:203.0.113.9:3478"]}],"iceTransportPolicy":"public"}`,
		},
		"an address for one that has none": {
			"username=alice&ttl=3600&namespace=media&gateway=pending&public-addr=192.0.2.44",
			`{"iceServers":[{"username":"1893456000:alice","credential":"6zlfmlvWfWDvDds1Zc+zxTmSW8w=","urls":["turn:192.0.2.44:3478?transport=udp"]}],
			  "iceTransportPolicy":"all"}`,
		},
	}
	for name, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(name+" by "+method, func(t *testing.T) {
				r := httptest.NewRequest(method, "/ice?"+tt.query, strings.NewReader("username=mallory"))
				sameJSON(t, s.do(t, r), tt.want)
			})
		}
	}
}

func sameJSON(t *testing.T, answer *http.Response, want string) {
	t.Helper()
	got := decode[any](t, answer, http.StatusOK)
	var wanted any
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if media := answer.Header.Get("Content-Type"); !strings.HasPrefix(media, "application/json") {
		t.Errorf("content type %q", media)
	}
	if answer.Header.Get("X-Config-Age") != "0" {
		t.Errorf("X-Config-Age %q", answer.Header.Get("X-Config-Age"))
	}
	_, _ = io.Copy(io.Discard, answer.Body)
}
