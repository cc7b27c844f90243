package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

func none(string) string { return "" }

func TestHelpNamesEveryFlagAndItsVariable(t *testing.T) {
	var out, errs bytes.Buffer
	if code := command(t.Context(), []string{"--help"}, none, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, &errs)
	}
	for _, want := range []string{"auth --config ORIGIN", "auth check URL", "auth version"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help does not contain %q", want)
		}
	}
	flags := newFlags(&raw{})
	flags.VisitAll(func(f *flag.Flag) {
		if len(f.Name) == 1 || flags.Env(f.Name) == "" { // a short name, or a former flag
			return
		}
		for _, want := range []string{"--" + f.Name + " ", "$" + envName(f.Name) + "\n", f.Name} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("help does not hold %q", want)
			}
		}
	})
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		if code := command(t.Context(), []string{arg}, none, &out, io.Discard); code != 0 ||
			!strings.HasPrefix(out.String(), "auth ") || !strings.Contains(out.String(), " go1.") {
			t.Errorf("%s: exit code %d, %q", arg, code, &out)
		}
	}
}

// J-01, J-11: a command line with several kinds of keys, or with a pattern as origin, is refused.
func TestInvalidCommandLinesAreRefused(t *testing.T) {
	tests := map[string]struct{ args, want string }{
		"no config":             {"--port 80", "--config is missing"},
		"one and several":       {"-c x --clusters y", "--clusters excludes --config"},
		"several, revocations":  {"--clusters y --revocations z", "--revocations and --clusters exclude each other"},
		"several with a token":  {"--clusters y --discovery-token-file t", "--clusters excludes --config"},
		"a stray word":          {"-c x serve", `unexpected argument "serve"`},
		"an unknown flag":       {"-c x --colour", "-colour"},
		"a port too high":       {"-c x --port 70000", "70000 is out of range"},
		"an address of letters": {"-c x --address here", `--address: "here"`},
		"an address and a port": {"-c x --address 127.0.0.1:80", `--address: "127.0.0.1:80"`},
		"half a JWT setup":      {"-c x --jwt-issuer i --jwt-jwks-file f", "--jwt-audience is missing"},
		"the other half":        {"-c x --jwt-audience a --jwt-issuer i", "a key is missing"},
		"two keys": {
			"-c x --jwt-audience a --jwt-issuer i --jwt-jwks-file f --jwt-secret-file s", "exclude each other",
		},
		"HMAC with a JWK set": {
			"-c x --jwt-audience a --jwt-issuer i --jwt-jwks-file f --jwt-algorithms HS256", "does not fit",
		},
		"a certificate alone": {"-c x --tls-cert c", "--tls-cert and --tls-key need each other"},
		"a key alone":         {"-c x --tls-key k", "--tls-cert and --tls-key need each other"},
		"a policy and an issuer": {
			"-c x --policy p --jwt-audience a --jwt-issuer i --jwt-jwks-file f --jwt-max-age 1",
			"--policy and --jwt-audience, --jwt-issuer, --jwt-jwks-file, --jwt-max-age exclude each other",
		},
		"ttl 0":                 {"-c x --default-ttl 0", "--default-ttl: 0"},
		"ttl above the maximum": {"-c x --max-ttl 60", "--default-ttl: 86400"},
		"a maximum of ages":     {"-c x --max-ttl 99999999999", "--max-ttl: 99999999999"},
		"a public port":         {"-c x --public-addr 192.0.2.1:3478", "--public-addr"},
		"a log of no format":    {"-c x --log-format xml", "--log-format"},
		"a level of no name":    {"-c x --log-level all:LOUD", "--log-level"},
		"an echo of no URL":     {"-c x --demo-echo localhost", "--demo-echo"},
		"every origin":          {"-c x --cors-origins *", `--cors-origins: "*"`},
		"an origin with a path": {
			"-c x --cors-origins https://a.example,https://b.example/", `--cors-origins: "https://b.example/"`,
		},
		"origins by a pattern":  {"-c x --cors-origins https://*.example", `--cors-origins: "https://*.example"`},
		"a proxy of no address": {"-c x --trusted-proxies 10.0.0.0/8,ingress", `--trusted-proxies: "ingress"`},
		"a gateway of no name":  {"-c x --gateways media/*,oslo", `--gateways: "oslo" is no pattern`},
		"an age below nothing": {
			"-c x --jwt-audience a --jwt-issuer i --jwt-jwks-file f --jwt-max-age -1", "--jwt-max-age: -1",
		},
		"an age of no tokens":   {"-c x --jwt-max-age 60", "--jwt-issuer is missing"},
		"an end without end":    {"-c x --shutdown-delay 3601", "--shutdown-delay: 3601"},
		"no gateway":            {"-c x --gateways=", "--gateways: names no gateway"},
		"a rate below nothing":  {"-c x --rate-limit -1", "--rate-limit: -1"},
		"a rate of no number":   {"-c x --rate-limit NaN", "--rate-limit: NaN"},
		"a rate of the cluster": {"-c x --cluster-rate-limit -1", "--cluster-rate-limit: -1"},
		"its burst":             {"-c x --cluster-rate-burst 0", "--cluster-rate-burst: 0"},
		"a network of no form":  {"-c x --cluster-networks 10.0.0.0/33", `--cluster-networks: "10.0.0.0/33"`},
		"another header":        {"-c x --forwarded-header X-Real-IP", `--forwarded-header: "X-Real-IP"`},
		"a burst of nothing":    {"-c x --rate-burst 0", "--rate-burst: 0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var errs bytes.Buffer
			if code := command(t.Context(), strings.Fields(tt.args), none, io.Discard, &errs); code != exitUsage {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(errs.String(), tt.want) {
				t.Errorf("%q does not say %q", &errs, tt.want)
			}
		})
	}
}

func TestFlagsOverrideTheEnvironment(t *testing.T) {
	env := map[string]string{
		"STUNNER_CONFIG_ORIGIN":     "http://discovery:13478",
		"STUNNER_PUBLIC_ADDR":       "turn.example.org",
		"STUNNER_AUTH_PORT":         "9000",
		"STUNNER_AUTH_DEFAULT_TTL":  "60",
		"STUNNER_AUTH_DEMO":         "true",
		"STUNNER_AUTH_JWT_ISSUER":   "i",
		"STUNNER_AUTH_JWT_AUDIENCE": "a",
	}
	o, err := parseOptions(
		[]string{"-c", "config.json", "--port", "9001", "--jwt-secret-file", "s", "--jwt-algorithms", "HS256,HS384"},
		func(name string) string { return env[name] },
	)
	if err != nil {
		t.Fatal(err)
	}
	if o.config != "config.json" || o.publicEndpoint() != ":9001" || o.defaultTTL != time.Minute ||
		o.publicAddr != "turn.example.org" || !o.demo {
		t.Errorf("%+v", o)
	}
	if got := o.access; got.Issuer != "i" || got.SecretFile != "s" || len(got.Algorithms) != 2 {
		t.Errorf("%+v", got)
	}
	env["STUNNER_AUTH_PORT"] = "many"
	if _, err := parseOptions(
		[]string{"-c", "x"}, func(name string) string { return env[name] },
	); err == nil || !strings.Contains(err.Error(), "STUNNER_AUTH_PORT") {
		t.Errorf("error %v does not name the variable", err)
	}
}

// J-05: --gateways may be repeated, and means every gateway if it is not given.
func TestGatewaysFlag(t *testing.T) {
	env := map[string]string{}
	for name, tt := range map[string]struct {
		args, env, in, out string
	}{
		"not given":                 {"", "", "any/thing", ""},
		"once":                      {"--gateways a/*,b/x", "", "a/y b/x", "b/y c/x"},
		"several times":             {"--gateways a/* --gateways b/x", "", "a/y b/x", "b/y c/x"},
		"the variable":              {"", "a/*,b/x", "a/y b/x", "b/y c/x"},
		"the flag before variables": {"--gateways c/*", "a/*", "c/x", "a/x"},
		"every gateway and more":    {"--gateways */* --gateways b/x", "", "a/y", ""},
	} {
		t.Run(name, func(t *testing.T) {
			env["STUNNER_AUTH_GATEWAYS"] = tt.env
			o, err := parseOptions(
				append([]string{"-c", "x"}, strings.Fields(tt.args)...), func(name string) string { return env[name] },
			)
			if err != nil {
				t.Fatal(err)
			}
			for want, ids := range map[bool]string{true: tt.in, false: tt.out} {
				for id := range strings.FieldsSeq(ids) {
					namespace, name, _ := strings.Cut(id, "/")
					if o.gateways.Contains(namespace, name) != want {
						t.Errorf("%s is in: %t, want %t", id, !want, want)
					}
				}
			}
		})
	}
}

// started is a running service.
type started struct {
	public, health string
	stop           func() int // ends it and returns its exit code
}

var serving = regexp.MustCompile(`address(?:=|":")([0-9.:]+)(?: |",")health(?:=|":")([0-9.:]+)`)

// start runs the command and waits for the log line with its address.
func start(t *testing.T, args ...string) started {
	t.Helper()
	logs, stderr := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, append(
			args, "--address", "127.0.0.1", "--port", "0", "--health-address", "127.0.0.1:0", "--shutdown-delay", "0",
		), none, io.Discard, stderr)
		_ = stderr.Close()
	}()
	s := started{stop: func() int { cancel(); return <-code }}
	scanner := bufio.NewScanner(logs)
	for scanner.Scan() {
		if m := serving.FindStringSubmatch(scanner.Text()); m != nil {
			s.public, s.health = "http://"+m[1], "http://"+m[2]
			break
		}
	}
	if s.public == "" {
		t.Fatalf("the service ended with %d", s.stop())
	}
	go func() { _, _ = io.Copy(io.Discard, logs) }() // ends with the service
	return s
}

func configFile(t *testing.T) string {
	t.Helper()
	return configFileOf(t, "192.0.2.9")
}

// configFileOf is the file of a gateway with a public address.
func configFileOf(t *testing.T, address string) string {
	t.Helper()
	c := config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: "media/oslo"},
		Auth: config.Auth{
			Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "fjord"},
		},
		Listeners: []config.Listener{{
			Name: "media/oslo/udp", Protocol: config.TURNUDP, PublicAddress: address, PublicPort: 3478, Port: 3478,
		}},
	}
	c.Default()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fetch returns status and body.
func fetch(t *testing.T, method, url string, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// J-14: a header of 1 MB gets 431.
func TestServiceFromAFile(t *testing.T) {
	s := start(t, "-c", configFile(t), "--demo")
	await(t, s.health+"/ready", http.StatusOK)
	// it is ready once the file is there, and serves when it is read
	await(t, s.public+"/?service=turn&username=ada", http.StatusOK)
	for _, tt := range []struct {
		method, url string
		status      int
		holds       string
	}{
		{http.MethodPost, s.public + "/v1/ice-servers", 201, "turn:192.0.2.9:3478?transport=udp"},
		{http.MethodGet, s.public + "/?service=turn&username=ada", 200, ":ada"},
		{http.MethodGet, s.public + "/ready", 404, ""},
		{http.MethodGet, s.health + "/ready", 200, "READY"},
		{http.MethodGet, s.public + "/demo/", 200, "Does my gateway work"},
		{http.MethodGet, s.public + "/demo", 200, "Does my gateway work"},
		{http.MethodPost, s.public + "/demo/echo", 405, ""},
		{http.MethodGet, s.public + "/metrics", 404, ""},
		{http.MethodGet, s.health + "/live", 200, "{}"},
		{http.MethodGet, s.health + "/metrics", 200, `stunner_auth_credentials_total 3`},
		{http.MethodGet, s.health + "/metrics", 200, `stunner_auth_requests_total{code="201",route="/v1/ice-servers"} 1`},
		{http.MethodGet, s.health + "/metrics", 200, "stunner_config_age_seconds 0"},
	} {
		if status, body := fetch(t, tt.method, tt.url, nil); status != tt.status || !strings.Contains(body, tt.holds) {
			t.Errorf("%s %s: %d %s", tt.method, tt.url, status, body)
		}
	}
	if status, _ := fetch(
		t, http.MethodGet, s.public+"/ice", http.Header{"X-Long": {strings.Repeat("x", 1<<20)}},
	); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("J-14 a header of 1 MB: %d", status)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestServiceOfSeveralClusters: the service answers while the operator of one of its clusters has not answered yet.
func TestServiceOfSeveralClusters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clusters.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`version: v1
regions: [{name: europe}, {name: america}]
clusters:
- {name: iad, region: america, config: "http://127.0.0.1:1"}
- {name: fra, region: europe, config: ` + configFile(t) + `}
`)
	s := start(t, "--clusters", file)
	await(t, s.health+"/ready", http.StatusOK)
	await(t, s.public+"/?service=turn&username=ada", http.StatusOK)
	if status, body := fetch(t, http.MethodPost, s.public+"/v1/ice-servers", nil); status != http.StatusCreated ||
		!strings.Contains(body, "turn:192.0.2.9:3478?transport=udp") {
		t.Errorf("%d %s", status, body)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for text, want := range map[string]string{
		"version: v1\nregions: [{name: a}]\n":                                                                "clusters: has 0 entries",
		"version: v1\nregions: [{name: a}]\nclusters: [{name: b, region: a, config: 'ftp://x'}]\n":           "clusters[0]: open config",
		"version: v1\ngeoIP: none.mmdb\nregions: [{name: a}]\nclusters: [{name: b, region: a, config: x}]\n": "none.mmdb",
	} {
		write(text)
		var log bytes.Buffer
		if code := command(t.Context(), []string{"--clusters", file, "--port", "0", "--health-address", "127.0.0.1:0"}, none, io.Discard, &log); code != exitFailure ||
			!strings.Contains(log.String(), want) || !strings.Contains(log.String(), "--clusters") {
			t.Errorf("%q: exit code %d, %s", text, code, &log)
		}
	}
}

func TestServiceWithTokens(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("k", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(
		t, "-c", configFile(t), "--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-secret-file", secret, "--demo-echo",
		"http://127.0.0.1:1/",
	)
	await(t, s.health+"/ready", http.StatusOK)
	for _, path := range []string{"/v1/ice-servers", "/demo/echo", "/?service=turn"} {
		if status, _ := fetch(t, http.MethodPost, s.public+path, nil); status != http.StatusUnauthorized {
			t.Errorf("J-06 POST %s without a token: %d", path, status)
		}
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// J-16, R-25: without a config the service is alive, not ready, and answers 503.
func TestServiceWithoutConfigIsAliveAndNotReady(t *testing.T) {
	s := start(t, "-c", filepath.Join(t.TempDir(), "nothing-yet.json"))
	for url, want := range map[string]int{
		s.health + "/live":               http.StatusOK,
		s.health + "/ready":              http.StatusServiceUnavailable,
		s.public + "/ice?namespace=none": http.StatusServiceUnavailable,
	} {
		if status, body := fetch(t, http.MethodGet, url, nil); status != want {
			t.Errorf("%s: %d %s", url, status, body)
		}
	}
	s.stop()
}

// await polls until the service answers as expected.
func await(t *testing.T, url string, status int) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, body := fetch(t, http.MethodGet, url, nil)
		if got == status {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s answers %d %s", url, got, body)
		case <-tick.C:
		}
	}
}
