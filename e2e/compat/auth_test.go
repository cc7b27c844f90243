package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// heading is the section of docs/migration/auth.md with the differences. head is the head of the table in it.
const (
	heading = "## Auth service\n"
	head    = "| request | existing service | this service | reason |\n| --- | --- | --- | --- |\n"
)

// J-10: requests of clients of the existing auth service get the recorded answers. Each exception is in
// docs/migration/auth.md with its reason.
func TestAuth(t *testing.T) {
	gateways := filepath.Join(harnesstest.Root(t), "e2e/compat/testdata/gateways.yaml")
	program := filepath.Join(harnesstest.Build(t, harness.Auth), "auth")
	empty := discovery.NewServer(discovery.ServerOptions{})
	lost := discovery.NewServer(discovery.ServerOptions{})
	used := map[*difference]bool{}
	requests := 0
	for name, service := range map[string]struct {
		origin string
		env    []string
		args   []string
		ready  func(url string) func(context.Context) error
		rows   []row
	}{
		"gateways": {gateways, nil, nil, answers(alpha, 200), rows()},
		"unready":  {serve(t, empty), nil, nil, answers(alpha, 503), unready()},
		"deleted":  {serve(t, lost), nil, nil, publishAndDelete(lost), deleted()},
		"moved":    {gateways, []string{"STUNNER_PUBLIC_ADDR=192.0.2.99"}, nil, answers(alpha, 200), moved()},
		"limited":  {gateways, nil, []string{"--gateways=calls/*"}, answers(alpha, 200), limited()},
	} {
		url := start(t, harness.Command{
			Name: name, Path: program, Args: append([]string{"--config", service.origin}, service.args...),
			Env: service.env, Logs: t.TempDir(),
		}, service.ready)
		for _, r := range service.rows {
			requests++
			if (r.why == nil) != reflect.DeepEqual(r.existing, r.ours) {
				t.Errorf("%s: the answers of the services differ, but there is no reason, or the reverse", r.target)
			}
			if r.why != nil && !slices.Contains(differences, r.why) {
				t.Errorf("%s: the difference %q is not in the table", r.target, r.why.request)
			}
			used[r.why] = true
			if got := ask(t, url+r.target, r.ours.exact); !reflect.DeepEqual(got, r.ours) {
				t.Errorf("%s: %s answers\n%+v, want\n%+v", name, r.target, got, r.ours)
			}
		}
	}
	if requests < 50 {
		t.Errorf("only %d requests", requests)
	}
	var table strings.Builder
	table.WriteString(head)
	for _, d := range differences {
		if !used[d] {
			t.Errorf("no request shows the difference %q", d.request)
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", d.request, d.existing, d.ours, d.reason)
	}
	_, section, _ := strings.Cut(harnesstest.Read(t, "docs/migration/auth.md"), heading)
	section, _, _ = strings.Cut(section, "\n## ")
	if _, rest, ok := strings.Cut(section, head); !ok || !strings.HasPrefix(head+rest, table.String()) ||
		strings.HasPrefix((head + rest)[table.Len():], "|") {
		t.Errorf("the table of section %q of docs/migration/auth.md is not current; it must be\n%s",
			strings.TrimSpace(heading), table.String())
	}
}

// serve runs a discovery server and returns its URL.
func serve(t *testing.T, s *discovery.Server) string {
	t.Helper()
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return h.URL
}

// start starts an auth service, waits until it is ready, and returns its URL.
func start(t *testing.T, c harness.Command, ready func(url string) func(context.Context) error) string {
	t.Helper()
	port := strconv.Itoa(harnesstest.Port(t))
	url := "http://" + harness.Loopback + ":" + port
	c.Args = append(c.Args, "--address="+harness.Loopback, "--port="+port, "--health-address="+harnesstest.Address(t))
	harnesstest.Start(t, c, ready(url))
	return url
}

// answers waits until a request has a status.
func answers(target string, status int) func(url string) func(context.Context) error {
	return func(url string) func(context.Context) error { return harness.Answers(url+target, status) }
}

// publishAndDelete publishes a gateway, waits until the service answers with it, and deletes it.
func publishAndDelete(s *discovery.Server) func(url string) func(context.Context) error {
	c := config.Config{
		Version: config.Version, Admin: config.Admin{Name: "calls/beta"},
		Auth: config.Auth{Type: config.AuthStatic, Credentials: map[string]credential.Secret{
			config.KeyUsername: "user-1", config.KeyPassword: "pass-1",
		}},
		Listeners: []config.Listener{{
			Name: "calls/beta/udp", Protocol: config.TURNUDP, PublicAddress: "198.51.100.20", Port: 3478,
		}},
	}
	c.Default()
	s.Publish(c)
	return func(url string) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := harness.Until(ctx, harness.Answers(url+"/ice?service=turn", http.StatusOK)); err != nil {
				return err
			}
			s.Delete("calls/beta")
			return harness.Until(ctx, harness.Answers(url+"/ice?service=turn", http.StatusNotFound))
		}
	}
}

// body holds the fields of the bodies of both calls, and of a problem.
type body struct {
	Username, Password string
	TTL                int64
	URIs               []string
	ICEServers         []struct {
		Username, Credential string
		URLs                 []string
	}
	ICETransportPolicy string
	Errors             []struct{ Parameter string }
}

// ask sends a request and reads its answer. It verifies credentials, and fails if the body has other fields.
func ask(t *testing.T, url string, exact bool) answer {
	t.Helper()
	before := time.Now()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := answer{status: res.StatusCode, media: res.Header.Get("Content-Type"), exact: exact}
	if !exact {
		if got.media, _, err = mime.ParseMediaType(got.media); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	var b body
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatalf("%s: %v: %s", url, err, data)
	}
	if got.status != http.StatusOK {
		for _, e := range b.Errors {
			got.wrong = e.Parameter
		}
		return got
	}
	fields := []string{"iceServers", "iceTransportPolicy"}
	if !strings.Contains(url, "/ice?") {
		fields = []string{"password", "ttl", "uris", "username"}
		s := read(t, url, b.Username, b.Password, b.URIs, before)
		if s.ttl != 0 && s.ttl != b.TTL {
			t.Errorf("%s: the body says ttl %d, and its credential expires in %d s", url, b.TTL, s.ttl)
		}
		got.servers = []server{s}
	}
	for _, s := range b.ICEServers {
		got.servers = append(got.servers, read(t, url, s.Username, s.Credential, s.URLs, before))
	}
	got.policy = b.ICETransportPolicy
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(maps.Keys(object)); !slices.Equal(names, fields) {
		t.Errorf("%s: the body has fields %v, want %v", url, names, fields)
	}
	return got
}

// read reads the credential of one gateway. It accepts the static credential and ephemeral credentials of
// testdata/gateways.yaml that were made at about the given time.
func read(t *testing.T, url, username, password string, urls []string, at time.Time) server {
	t.Helper()
	s := server{user: username, urls: strings.Join(urls, " ")}
	expires, user, ephemeral := strings.Cut(username, ":")
	seconds, err := strconv.ParseInt(expires, 10, 64)
	switch {
	case username == "" && password == "": // the gateway serves STUN only
	case !ephemeral || err != nil:
		if password != "pass-1" {
			t.Errorf("%s: user name %s with another password", url, username)
		}
	default:
		// The lifetime is counted from a time between the request and its answer. It is rounded down to one of the
		// lifetimes in the rows, which differ by more than the duration of a request.
		left := seconds - at.Unix()
		s.user, s.ttl = user, left
		for _, ttl := range []int64{1, 60, 600, 3600, day} {
			if left >= ttl && left <= ttl+int64(time.Since(at)/time.Second)+1 {
				s.ttl = ttl
			}
		}
		want, err := credential.Authority{SharedSecret: "s3cret"}.Mint(user, time.Duration(left)*time.Second, at)
		if err != nil || want.Username != username || string(want.Password) != password {
			t.Errorf("%s: user name %s has another password than that of the shared secret", url, username)
		}
	}
	return s
}
