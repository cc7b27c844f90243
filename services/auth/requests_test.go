package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// The operator gets the grants of a Gateway over the stream of the configs, and callers of the service do not.
func TestOperatorAsksForGrants(t *testing.T) {
	data, err := os.ReadFile(configFile(t))
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	operator := discovery.NewServer(discovery.ServerOptions{
		Authorize: func(*http.Request) (discovery.Grant, error) { return discovery.Grant{All: true, ForAuth: true}, nil },
	})
	operator.Publish(c)
	web := httptest.NewServer(operator)
	defer web.Close()
	s := start(t, "-c", web.URL, "--show-users")
	defer s.stop()
	get := func(url string) int {
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer http.DefaultClient.CloseIdleConnections()
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	within := func(what string, reached func() bool) {
		for deadline := time.Now().Add(30 * time.Second); !reached(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s within 30 s", what)
			}
		}
	}
	within("credential", func() bool { return get(s.public+"/?service=turn&username=ada") == 200 })
	var answers []discovery.Answer
	within("answer", func() bool { // the service announces after the first config that it answers requests
		answers = operator.Ask(t.Context(), discovery.Query{
			ID: "media/oslo", Kind: inspection.Auth, Method: http.MethodGet, Target: "/grants?user=ada",
		})
		return len(answers) > 0
	})
	var list inspection.GrantList
	if len(answers) != 1 || answers[0].Status != 200 || json.Unmarshal(answers[0].Body, &list) != nil ||
		len(list.Grants) != 1 || list.Grants[0].User != "ada" || list.Grants[0].Source != "127.0.0.1" {
		t.Errorf("answers %+v", answers)
	}
	if host, _ := os.Hostname(); len(answers) == 1 && answers[0].Pod != host {
		t.Errorf("pod %s", answers[0].Pod)
	}
	for _, url := range []string{s.public, s.health} {
		if status := get(url + "/grants?gateway=media/oslo"); status < 400 {
			t.Errorf("%s answers %d", url, status)
		}
	}
}

// The operator gets the state of the service over the stream of the configs, and callers of the service do not. The
// operator computes the revision of a config for auth services.
func TestOperatorAsksForTheState(t *testing.T) {
	data, err := os.ReadFile(configFile(t))
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	c.Listeners = append(c.Listeners, config.Listener{
		Name: "media/oslo/tls", Protocol: config.TURNTLS, Address: config.NodeAddressPlaceholder, Port: 5349, Cert: "c", Key: "k",
		Routes: []string{"media/sfu"},
	})
	c.Clusters = []config.Cluster{{Name: "media/sfu", Endpoints: []string{"192.0.2.4"}}}
	c.Default()
	operator := discovery.NewServer(discovery.ServerOptions{
		Authorize: func(*http.Request) (discovery.Grant, error) { return discovery.Grant{All: true, ForAuth: true}, nil },
	})
	operator.Publish(c)
	web := httptest.NewServer(operator)
	defer web.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, "-c", web.URL, "--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-secret-file", secret)
	defer s.stop()
	await(t, s.health+"/ready", http.StatusOK)
	if status, _ := fetch(t, http.MethodPost, s.public+"/v1/ice-servers", nil); status != http.StatusUnauthorized {
		t.Fatalf("status %d", status)
	}
	var answers []discovery.Answer
	for deadline := time.Now().Add(30 * time.Second); len(answers) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no answer within 30 s")
		}
		answers = operator.Ask(t.Context(), discovery.Query{Kind: inspection.Auth, Method: http.MethodGet, Target: "/status"})
	}
	published, _, ok := operator.Published("media/oslo")
	var got inspection.AuthStatus
	if err := json.Unmarshal(answers[0].Body, &got); err != nil || answers[0].Status != http.StatusOK || !ok {
		t.Fatalf("answers %v, %v", answers, err)
	}
	if want := map[string]string{"media/oslo": published.ForAuth().Revision()}; !maps.Equal(got.Configs, want) {
		t.Errorf("configs %v, want %v", got.Configs, want)
	}
	if !maps.Equal(got.Refused, map[string]uint64{"token_missing": 1}) || got.Granted != 0 || got.Open || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	for name, at := range map[string]time.Time{"now": got.Now, "keysRead": got.KeysRead, "changed": got.Changed} {
		if at.IsZero() || at.After(time.Now()) {
			t.Errorf("%s is %s", name, at)
		}
	}
	for _, secret := range []string{"fjord", strings.Repeat("k", 32)} {
		if strings.Contains(string(answers[0].Body), secret) {
			t.Errorf("a secret is in %s", answers[0].Body)
		}
	}
	if status, _ := fetch(t, http.MethodGet, s.health+"/status", nil); status < 400 {
		t.Errorf("the port of the probes answers %d", status)
	}
	if status, _ := fetch(t, http.MethodGet, s.public+"/status", nil); status < 400 {
		t.Errorf("the API answers %d", status)
	}
}
