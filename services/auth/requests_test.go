package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
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
