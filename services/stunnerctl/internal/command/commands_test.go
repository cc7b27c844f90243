package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// at is the time of the commands in tests.
var at = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	clock = func() time.Time { return at }
	os.Unsetenv("KUBECONFIG")
	os.Setenv("HOME", "/nonexistent")
	os.Exit(m.Run())
}

func TestStatus(t *testing.T) {
	w := newStatusProvider(t)
	for name, args := range map[string][]string{
		"status":           {"status", "media/frankfurt"},
		"status-wide":      {"status", "media/frankfurt", "-o", "wide"},
		"status-json":      {"status", "-n", "media", "-o", "json"},
		"status-namespace": {"status", "-n", "media"},
		"status-pod":       {"status", "media/frankfurt", "--pod-name", "frankfurt-2", "--no-headers"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != exitFailed || !strings.Contains(errs, "no answer from operator-2: no answer in 2s") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	if out, errs, code := w.run(t, "status", "shop/turn"); code != 0 || errs != "" || !strings.Contains(out, "no pod") {
		t.Error(out, errs, code)
	}
}

func TestConfig(t *testing.T) {
	w := newStatusProvider(t)
	for name, args := range map[string][]string{
		"config":      {"config", "media/frankfurt"},
		"config-dump": {"config", "dump", "media/frankfurt"},
		"config-path": {"config", "media/frankfurt", "-o", "jsonpath={.listeners[*].public_address}"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != 0 || errs != "" {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	w.answers["GET gateways/media/frankfurt/status"] = list(
		"media/frankfurt",
		"frankfurt-1 "+syncedStatus,
		`frankfurt-2 {"revision":"sha256:old","auth":{"type":"static","realm":"old.example"},"config":{"rejected":"bad"},`+
			`"listeners":[{"name":"media/frankfurt/udp","protocol":"TURN-UDP","port":3479,"address":"10.0.0.1",`+
			`"public_address":"192.0.2.7","public_port":3478,"routes":["media/calls"],"stats":{"rx":{"pkts":1}}}],`+
			`"clusters":[{"name":"media/calls","type":"STATIC","endpoints":["10.1.0.1","10.0.0.0/8"]},`+
			`{"name":"media/gone","type":"STATIC","endpoints":["10.2.0.0/16"]}]}`,
	)
	for name, args := range map[string][]string{
		"config-diff":      {"config", "diff", "media/frankfurt"},
		"config-diff-json": {"config", "diff", "media/frankfurt", "-o", "json"},
	} {
		out, errs, code := w.run(t, args...)
		expectGolden(t, name, out)
		if code != exitFailed {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
	out, errs, code := w.run(t, "config", "dump", "media/frankfurt", "--running")
	if code != 0 || !strings.Contains(out, "frankfurt-2:") || !strings.Contains(out, "port: 3479") {
		t.Error(out, errs, code)
	}
}

// The summary of a listener behind a load balancer has the protocol of its clients.
func TestConfigOfAListenerBehindALoadBalancer(t *testing.T) {
	w := newProvider(t)
	const key = "GET gateways/media/frankfurt/config"
	w.answers[key] = strings.Replace(w.answers[key], `"protocol":"TURN-UDP"`,
		`"protocol":"TURN-TCP","tls_at_load_balancer":true,"proxy_protocol":["10.0.0.0/24","fd00::7/128"]`, 1)
	out, errs, code := w.run(t, "config", "media/frankfurt")
	for _, line := range []string{
		"    Protocol:            TURN-TCP\n",
		"    Client protocol:     TURN-TLS, TLS ends at the load balancer\n",
		"    PROXY protocol from: 10.0.0.0/24, fd00::7/128\n",
	} {
		if code != 0 || !strings.Contains(out, line) {
			t.Errorf("exit code %d, %s; no line %q in\n%s", code, errs, line, out)
		}
	}
	for protocol, found := range map[config.Protocol]int{config.TURNTCP: 0, config.TURNTLS: 1} {
		g := newGlobals(Streams{})
		g.folder = w.folder
		listeners, err := g.gatewayListeners(t.Context(), types.NamespacedName{Namespace: "media", Name: "frankfurt"},
			func(_ string, p config.Protocol) bool { return p == protocol })
		if err != nil || len(listeners) != found || found > 0 && listeners[0].uri.Protocol() != config.TURNTLS {
			t.Errorf("listeners of %s: %+v, %v; want %d", protocol, listeners, err, found)
		}
	}
}

// Commands that connect to a listener use the host name of its certificate as clients do, once for all addresses.
func TestConfigOfAListenerWithThePublicHostOfItsCertificate(t *testing.T) {
	w := newProvider(t)
	const key = "GET gateways/media/frankfurt/config"
	w.answers[key] = strings.Replace(w.answers[key], `"protocol":"TURN-UDP"`,
		`"protocol":"TURN-TLS","public_host":"turn.example.org","public_addresses":["192.0.2.7","2001:db8::7"]`, 1)
	out, errs, code := w.run(t, "config", "media/frankfurt")
	for _, line := range []string{
		"    Public address:      192.0.2.7:3478, [2001:db8::7]:3478\n",
		"    Public host:         turn.example.org, which clients receive instead of the public address\n",
	} {
		if code != 0 || !strings.Contains(out, line) {
			t.Errorf("exit code %d, %s; no line %q in\n%s", code, errs, line, out)
		}
	}
	g := newGlobals(Streams{})
	g.folder = w.folder
	listeners, err := g.gatewayListeners(t.Context(), types.NamespacedName{Namespace: "media", Name: "frankfurt"},
		func(string, config.Protocol) bool { return true })
	if err != nil || len(listeners) != 1 || listeners[0].uri.String() != "turns:turn.example.org:3478?transport=tcp" {
		t.Errorf("listeners: %+v, %v", listeners, err)
	}
}

func TestCanReach(t *testing.T) {
	w := newProvider(t)
	allowed := `{"listener":"media/frankfurt/udp","allowed":true,"cluster":"media/calls","endpoint":"10.0.0.0/8:<1-65535>"}`
	denied := `{"listener":"media/frankfurt/tls","allowed":false,"reason":"peer_denied","text":"no route allows the peer"}`
	w.answers["GET gateways/media/frankfurt/reach"] = list("media/frankfurt",
		`frankfurt-1 {"peer":"10.0.0.1:5000","listeners":[`+allowed+`,`+denied+`]}`,
		`frankfurt-2 {"peer":"10.0.0.1:5000","listeners":[`+allowed+`]}`)
	out, errs, code := w.run(t, "can-reach", "media/frankfurt", "10.0.0.1:5000")
	expectGolden(t, "can-reach", out)
	if code != exitFailed || errs != "" {
		t.Error(errs, code)
	}
	w.answers["GET gateways/media/frankfurt/reach"] = list("media/frankfurt", `frankfurt-1 {"listeners":[`+allowed+`]}`)
	for query, args := range map[string][]string{
		"peer=10.0.0.1:5000":                                 {"media/frankfurt", "10.0.0.1:5000"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5000":    {"media/frankfurt/udp", "10.0.0.1:5000"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5001":    {"frankfurt/udp", "10.0.0.1:5001", "-n", "media"},
		"listener=media/frankfurt/udp&peer=10.0.0.1:5002":    {"media/frankfurt:udp", "10.0.0.1:5002"},
		"listener=media/frankfurt/udp&peer=[2001:db8::1]:50": {"media/frankfurt", "[2001:db8::1]:50", "--listener", "udp"},
	} {
		w.requests = nil
		out, errs, code := w.run(t, append([]string{"can-reach"}, args...)...)
		if code != 0 || !slices.Equal(w.requests, []string{"GET gateways/media/frankfurt/reach?" + query}) {
			t.Error(args, w.requests, out, errs, code)
		}
	}
	for _, args := range [][]string{{"a/b/c/d", "10.0.0.1:5"}, {"media/frankfurt", "10.0.0.1"}, {"media/frankfurt", "host:5"}, {"x"}} {
		if _, errs, code := w.run(t, append([]string{"can-reach"}, args...)...); code != exitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
	}
}

// The status of a draining pod lists the calls that have moved, and why others stay.
func TestRemainingCalls(t *testing.T) {
	moving := inspection.Status{AllocationCount: 3, Drain: &inspection.DrainStatus{
		Moved: 40, Stay: map[string]int{"TCP": 2, inspection.StaysForPeer: 1},
	}}
	for want, s := range map[string]inspection.Status{
		"3 calls remain: 40 moved, 3 stay (2 TCP, 1 peer).": moving, "5 calls remain.": {AllocationCount: 5},
	} {
		if got := remaining(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDrainInAFolder(t *testing.T) {
	w := newProvider(t)
	for _, args := range [][]string{{"--wait", "--timeout", "-5m"}, {"--timeout", "5m"}} {
		_, errs, code := w.run(t, append([]string{"drain", "frankfurt-1"}, args...)...)
		if code != exitUsage || !strings.Contains(errs, "--timeout") {
			t.Error(args, errs, code)
		}
	}
	_, errs, code := w.run(t, "drain", "frankfurt-1")
	if code != exitUsage || !strings.Contains(errs, "remove the Gateway from the input folder") {
		t.Error(errs, code)
	}
}

func TestVersion(t *testing.T) {
	w := newStatusProvider(t)
	out, errs, code := w.run(t, "version", "media/frankfurt")
	for _, want := range []string{"Client:    stunnerctl", "Operator:  operator v1.2.3", "frankfurt-1   stunnerd v1.2.3"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if code != exitFailed || !strings.Contains(errs, "frankfurt-5: this release of stunnerd answers no requests") {
		t.Error(errs, code)
	}
	if out, errs, code = execute(t, "", "version", "--client"); code != 0 || errs != "" ||
		!strings.HasPrefix(out, "Client:") {
		t.Error(out, errs, code)
	}
	if out, errs, code = execute(t, "", "version"); code != exitFailed || !strings.Contains(errs, "no kubeconfig") ||
		!strings.HasPrefix(out, "Client:") {
		t.Error(out, errs, code)
	}
}

// Tenants can choose many of the texts in the answers of pods. The commands print them without control characters.
func TestHostileAnswers(t *testing.T) {
	w := newProvider(t)
	evil, err := json.Marshal("x\x1b[2J\x1b]52;c;ZXZpbA==\x07\u009b31m\u202e\r\ny")
	if err != nil {
		t.Fatal(err)
	}
	e := string(evil)
	incomplete := func(answer string) string {
		return strings.Replace(answer, `"items"`, `"incomplete":[`+e+`],"items"`, 1)
	}
	w.answers["GET gateways/media/frankfurt/status"] = incomplete(list(
		"x",
		`pod {"status":`+e+`,"revision":`+e+`,"program":`+e+`,"problem":`+e+`,"listeners":[{"name":`+e+`,"routes":[`+e+`]}]}`,
		"pod2 !x\x1b[2J\r\ny",
		`pod3 500 {"message":`+e+`}`,
	))
	w.answers["GET gateways/media/frankfurt/sessions"] = incomplete(list("x",
		`pod {"sessions":[{"id":`+e+`,"user":`+e+`,"client":`+e+`,"relay":`+e+`,"listener":`+e+`}]}`))
	w.answers["GET gateways/media/frankfurt/refusals"] = list("x",
		`pod {"refusals":[{"reason":`+e+`,"text":`+e+`,"user":`+e+`,"peer":`+e+`}]}`)
	w.answers["GET gateways/media/frankfurt/reach"] = list("x",
		`pod {"listeners":[{"listener":`+e+`,"cluster":`+e+`,"endpoint":`+e+`,"reason":`+e+`,"text":`+e+`}]}`)
	w.answers["GET gateways/media/frankfurt/config"] = `{"revision":` + e + `,"config":{"admin":{"name":` + e + `},"listeners":[{"name":` +
		e + `,"routes":[` + e + `]}]}}`
	w.answers["GET gateways/media/berlin/sessions"] = `403 {"message":` + e + `}`
	w.answers["GET operator"] = `{"version":` + e + `}`
	for _, args := range [][]string{
		{"status", "media/frankfurt"}, {"sessions", "media/frankfurt"}, {"refusals", "media/frankfurt"},
		{"can-reach", "media/frankfurt", "10.0.0.1:5"}, {"config", "media/frankfurt"}, {"config", "diff", "media/frankfurt"},
		{"config", "dump", "media/frankfurt"}, {"config", "dump", "media/frankfurt", "--running"}, {"sessions", "-A"},
		{"sessions", "media/berlin"}, {"version", "media/frankfurt"},
	} {
		for _, format := range []string{"table", "wide", "json", "yaml", "jsonpath={}"} {
			out, errs, _ := w.run(t, append(args, "-o", format)...)
			if strings.ContainsAny(out+errs, "\x1b\r\x07\u009b\u202e") {
				t.Errorf("%s -o %s: %q", args, format, out+errs)
			}
			if out+errs == "" {
				t.Errorf("%s -o %s: no output", args, format)
			}
		}
	}
}

func TestHelp(t *testing.T) {
	root := newRoot("stunnerctl", Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}})
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		if out, errs, code := execute(t, "", append(path, "--help")...); code != 0 || out == "" || errs != "" {
			t.Errorf("%s --help: %s %d", path, errs, code)
		}
		if !c.Hidden && c.Runnable() && c.Name() != "help" && c.Long == "" && c.Example == "" {
			t.Errorf("%s: neither Long nor Example", path)
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	for _, c := range root.Commands() {
		visit(c)
	}
}

func TestCompletion(t *testing.T) {
	w := newStatusProvider(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"status", ""}, []string{"media/berlin", "media/frankfurt", "shop/turn"}},
		{[]string{"kick", "media/frankfurt", ""}, nil},
		{[]string{"can-reach", "media/frankfurt", "--listener", ""}, []string{"tls"}},
		{[]string{"status", "-o", ""}, []string{"table", "wide", "json", "yaml", "jsonpath="}},
		{[]string{"status", "-n", ""}, []string{"media", "shop"}},
	} {
		out, errs, code := w.run(t, append([]string{"__complete"}, c.args...)...)
		var got []string
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, ":") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if code != 0 || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q; %s", c.args, got, c.want, errs)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, code := execute(t, "", "completion", shell); code != 0 || len(out) < 1000 {
			t.Error(shell, errs, code)
		}
	}
}
