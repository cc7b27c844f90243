package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const sessionsOf1 = `{"total":250,"sessions":[
{"id":"s1","listener":"media/frankfurt/udp","protocol":"TURN-UDP","user":"ada","client":"203.0.113.7","relay":"10.0.0.1:40000",
"started":"2026-11-23T11:00:00Z","age":"1h0m0s","channels":1,"stats":{"rx":{"pkts":10,"bytes":123456},"tx":{"pkts":20,"bytes":99}}},
{"id":"s2","listener":"media/frankfurt/udp","protocol":"TURN-UDP","user":"bob","client":"203.0.113.8","relay":"10.0.0.1:40001","front":"10.0.0.2:39001",
"started":"2026-11-23T11:59:30Z","age":"30s","channels":0,"stats":{"rx":{},"tx":{}}}]}`

func TestSessions(t *testing.T) {
	w := newProvider(t)
	w.answers["GET gateways/media/frankfurt/sessions"] = list(
		"media/frankfurt",
		"frankfurt-1 "+sessionsOf1,
		`frankfurt-2 {"total":1,"sessions":[{"id":"s3","listener":"media/frankfurt/tls","protocol":"TURN-TLS","user":"eve",`+
			`"client":"2001:db8::1","relay":"10.0.0.2:1","started":"2026-11-23T11:30:00Z"}]}`,
	)
	for name, args := range map[string][]string{
		"sessions":      {"sessions", "frankfurt", "-n", "media"},
		"sessions-all":  {"sessions", "-A"},
		"sessions-wide": {"sessions", "media/frankfurt", "-o", "wide"},
		"sessions-yaml": {"sessions", "media/frankfurt", "-o", "yaml"},
		"sessions-path": {"sessions", "media/frankfurt", "-o", "jsonpath={.sessions[*].user}"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		table := !strings.HasSuffix(name, "yaml") && !strings.HasSuffix(name, "path")
		if code != 0 || table && !strings.Contains(errs, "3 of 251 sessions") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.requests = nil
	_, errs, code := w.run(
		t,
		"sessions",
		"media/frankfurt",
		"--user",
		"ada",
		"--client",
		"203.0.113.7",
		"--listener",
		"udp",
		"--since",
		"10m",
		"--limit",
		"7",
	)
	want := []string{
		"GET gateways/media/frankfurt/sessions?client=203.0.113.7&limit=7&listener=media/frankfurt/udp&since=10m&user=ada",
	}
	if code != 0 || !slices.Equal(w.requests, want) {
		t.Error(w.requests, errs, code)
	}
	for _, args := range [][]string{{"--since", "yesterday"}, {"--limit", "0.5"}, {"--limit", "5000"}, {"--reason", "x"}} {
		if _, errs, code := w.run(t, append([]string{"sessions", "media/frankfurt"}, args...)...); code != exitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
	}
	w.answers["GET gateways/media/frankfurt/sessions"] = `403 {"message":"needs get on gateways/sessions in namespace media"}`
	if out, errs, code := w.run(t, "sessions", "media/frankfurt"); code != exitFailed || out != "" ||
		!strings.Contains(errs, "needs get on gateways/sessions in namespace media") {
		t.Error(out, errs, code)
	}
	out, errs, code := w.run(t, "sessions", "-A")
	if code != exitFailed || !strings.Contains(errs, "gateway media/frankfurt: the operator refuses") {
		t.Error(out, errs, code)
	}
}

func TestRefusals(t *testing.T) {
	w := newProvider(t)
	w.answers["GET gateways/media/frankfurt/refusals"] = list(
		"media/frankfurt",
		`frankfurt-1 {"suppressed":3,"refusals":[{"last":"2026-11-23T11:59:00Z","first":"2026-11-23T10:00:00Z","times":7,`+
			`"answered":true,"reason":"peer_denied","text":"no route of the listener allows the peer; routes: media/calls",`+
			`"listener":"media/frankfurt/udp","user":"ada","client":"203.0.113.7","peer":"10.9.9.9:5000"}]}`,
		`frankfurt-2 {"suppressed":0,"refusals":[{"last":"2026-11-23T11:59:50Z","first":"2026-11-23T11:59:50Z","times":1,`+
			`"answered":true,"reason":"bad_credential","text":"wrong password","listener":"media/frankfurt/udp"}]}`,
	)
	for name, args := range map[string][]string{
		"refusals":      {"refusals", "media/frankfurt"},
		"refusals-json": {"refusals", "media/frankfurt", "-o", "json"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != 0 || name == "refusals" && !strings.Contains(errs, "3 more were too frequent") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.requests = nil
	_, _, _ = w.run(t, "refusals", "media/frankfurt", "--reason", "peer_denied")
	if want := []string{"GET gateways/media/frankfurt/refusals?limit=100&reason=peer_denied"}; !slices.Equal(
		w.requests,
		want,
	) {
		t.Error(w.requests)
	}
}

func TestKick(t *testing.T) {
	w := newProvider(t)
	w.answers["DELETE gateways/media/frankfurt/sessions/s2"] = list(
		"media/frankfurt",
		`frankfurt-1 404 {"message":"no such session"}`,
		`frankfurt-2 {"ended":[{"id":"s2","user":"bob"}]}`,
	)
	w.answers["DELETE gateways/media/frankfurt/sessions/s9"] = list(
		"media/frankfurt",
		`frankfurt-1 404 {"message":"no such session"}`,
	)
	w.answers["DELETE gateways/media/frankfurt/sessions"] = list(
		"media/frankfurt",
		`frankfurt-1 {"ended":[],"total":0}`,
		`frankfurt-2 {"ended":[{"id":"s2","user":"bob"}],"total":1}`,
	)
	for _, c := range []struct {
		args []string
		code int
		errs string
		sent string
	}{
		{[]string{"media/frankfurt", "s2"}, 0, "Ended 1 sessions.", "/s2"},
		{[]string{"media/frankfurt", "s9"}, 1, "no pod of Gateway media/frankfurt has this session", "/s9"},
		{[]string{"media/frankfurt", "--user", "bob"}, 0, "Ended 1 sessions.", "?user=bob"},
		{[]string{"media/frankfurt", "--client", "::1"}, 0, "Ended 1 sessions.", "?client=::1"},
		{[]string{"media/frankfurt"}, exitUsage, "name the sessions to end", ""},
		{[]string{"media/frankfurt", "s2", "--user", "bob"}, exitUsage, "name the sessions to end", ""},
	} {
		w.requests = nil
		out, errs, code := w.run(t, append([]string{"kick"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.errs) || code == 0 && !strings.Contains(out, "bob") {
			t.Error(c.args, out, errs, code)
		}
		if c.sent != "" && !slices.Equal(w.requests, []string{"DELETE gateways/media/frankfurt/sessions" + c.sent}) {
			t.Error(c.args, w.requests)
		}
	}
}

// A running pod that is not connected is named, and the exit code is 1: its sessions are not in the answer.
func TestPodsThatDoNotAnswerAreNamed(t *testing.T) {
	w := newProvider(t)
	silent := "frankfurt-9 !" + inspection.NotConnected
	path := "gateways/media/frankfurt/"
	w.answers["GET "+path+"status"] = list("media/frankfurt", silent, `frankfurt-1 {"status":"READY"}`)
	w.answers["GET "+path+"sessions"] = list("media/frankfurt", silent, `frankfurt-1 {"sessions":[{"id":"s1"}],"total":1}`)
	w.answers["GET "+path+"refusals"] = list("media/frankfurt", silent, `frankfurt-1 {"refusals":[{"reason":"quota"}],"total":1}`)
	w.answers["GET "+path+"reach"] = list("media/frankfurt", silent,
		`frankfurt-1 {"listeners":[{"listener":"media/frankfurt/udp","allowed":true}]}`)
	w.answers["DELETE "+path+"sessions"] = list("media/frankfurt", silent, `frankfurt-1 {"ended":[{"id":"s1"}],"total":1}`)
	w.answers["DELETE "+path+"sessions/s1"] = list("media/frankfurt", silent, `frankfurt-1 404 {"message":"none"}`)
	for _, c := range []struct{ args, out string }{
		{"status media/frankfurt", "frankfurt-9"},
		{"sessions media/frankfurt", "s1"},
		{"refusals media/frankfurt", "quota"},
		{"can-reach media/frankfurt 10.0.0.1:5000", "allowed"},
		{"kick media/frankfurt --user ada", "s1"},
		{"kick media/frankfurt s1", ""},
	} {
		out, errs, code := w.run(t, strings.Fields(c.args)...)
		if code != 1 || !strings.Contains(out+errs, inspection.NotConnected) || !strings.Contains(out, c.out) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}
}
