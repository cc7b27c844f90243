package main

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// A process answers requests of the operator over the stream of its config. A session that the operator ends no longer
// exists after a second.
func TestRequestsOfTheOperator(t *testing.T) {
	t.Parallel()
	p := &process{t: t, peer: echo(t), ended: make(chan struct{})}
	data, err := os.ReadFile(p.config(func(*config.Config) {}))
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	operator := discovery.NewServer(discovery.ServerOptions{})
	revision, _ := operator.Publish(c)
	web := httptest.NewServer(operator)
	t.Cleanup(web.Close)
	t.Cleanup(web.CloseClientConnections)
	began := time.Now()
	p.launch("--watch", "--config", web.URL, "--id", "media/edge", "--pod", "edge-1")
	call := p.mustDial("ann")
	other := p.mustDial("bob")

	query := func(method, target string) []discovery.Answer {
		return operator.Ask(t.Context(), discovery.Query{
			ID: "media/edge", Kind: inspection.Dataplane, Method: method, Target: target,
		})
	}
	p.within("announcement that it answers requests", func() bool {
		got := query("GET", "/status")
		return len(got) == 1 && got[0].Error != discovery.AnswersNoRequests
	})
	ask := func(method, target string, answer any) {
		t.Helper()
		got := query(method, target)
		if len(got) != 1 || got[0].Pod != "edge-1" || got[0].Status != 200 || json.Unmarshal(got[0].Body, answer) != nil {
			t.Fatalf("%s %s: %+v", method, target, got)
		}
	}
	var status inspection.Status
	ask("GET", "/status", &status)
	if status.Pod != "edge-1" || !strings.HasPrefix(status.Program, "stunnerd ") ||
		status.Config.Revision != revision || status.Config.Origin == "" ||
		status.Config.Age != 0 || status.Started.Before(began.Add(-time.Second)) || time.Since(status.Now).Abs() > time.Minute ||
		status.Capacity == 0 || status.Draining || status.AllocationCount != 2 || status.Withheld != "" {
		t.Errorf("status %+v", status)
	}
	for _, l := range status.Listeners {
		if l.Protocol.Secure() != (l.Certificate != nil && l.Certificate.SelfSigned && l.Certificate.NotAfter.After(time.Now())) {
			t.Errorf("%s: certificate %+v", l.Name, l.Certificate)
		}
	}
	var reach inspection.Reach
	ask("GET", "/reach?listener=media/edge/udp&peer="+p.peer.String(), &reach)
	if len(reach.Listeners) != 1 || !reach.Listeners[0].Allowed || reach.Listeners[0].Cluster != "media/echo" {
		t.Errorf("reach %+v", reach)
	}
	var kicked inspection.Kicked
	ask("DELETE", "/sessions?user=ann", &kicked)
	if kicked.Total != 1 {
		t.Errorf("%+v", kicked)
	}
	if err := call.echo("gone"); err == nil {
		t.Error("the ended session relays")
	}
	if err := other.echo("hello"); err != nil {
		t.Error(err)
	}
	p.draining()
	p.within("draining", func() bool {
		ask("GET", "/status", &status)
		return status.Draining && status.AllocationCount == 1
	})
}
