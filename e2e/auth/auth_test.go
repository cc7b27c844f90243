// Package auth measures how the auth service answers under floods of requests. It starts the built program, and sends
// requests from many addresses.
package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

const (
	issuer   = "https://id.example.org"
	audience = "calls"
)

// provider is an identity provider. The answer of its key set can be delayed.
type provider struct {
	*httptest.Server
	key   *ecdsa.PrivateKey
	slow  atomic.Bool
	asked atomic.Int32
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(
		`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"one","x":%q,"y":%q}]}`,
		encode(point[1:33]), encode(point[33:]),
	)
	ended := make(chan struct{})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		if p.slow.Load() {
			select {
			case <-r.Context().Done():
			case <-ended:
			}
			return
		}
		_, _ = io.WriteString(w, set)
	}))
	t.Cleanup(func() { close(ended); p.Close() })
	return p
}

// token returns a JSON Web Token (RFC 7519). It does not use the library of the program under test.
func token(key *ecdsa.PrivateKey, kid string, change func(claims map[string]any)) string {
	claims := map[string]any{"iss": issuer, "aud": audience, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}
	change(claims)
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"typ":"JWT","alg":"ES256","kid":"`+kid+`"}`)) + "." + encode(payload)
	hash := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		panic(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + encode(signature)
}

// service is the program with one gateway.
type service struct {
	*harness.Process
	url, health, file string
}

// start starts the program in a folder, and waits until it is ready.
func start(t *testing.T, folder string, args ...string) service {
	t.Helper()
	s := service{file: filepath.Join(t.TempDir(), "gateway.json")}
	s.put(t, "192.0.2.9")
	port, health := strconv.Itoa(harnesstest.Port(t)), harnesstest.Address(t)
	s.url, s.health = "http://"+harness.Loopback+":"+port+"/v1/ice-servers", "http://"+health
	s.Process = harnesstest.Start(t, harness.Command{
		Name: "auth", Path: filepath.Join(folder, "auth"), Logs: t.TempDir(), Args: append(args,
			"--config", s.file, "--address", harness.Loopback, "--port", port, "--health-address", health),
	}, harness.Answers(s.health+"/ready", http.StatusOK))
	return s
}

// put writes the config of the gateway with a public address.
func (s service) put(t *testing.T, address string) {
	t.Helper()
	c := config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: "media/oslo"},
		Auth: config.Auth{
			Type: config.AuthEphemeral, Credentials: map[string]credential.Secret{config.KeySecret: "fjord"},
		},
		Listeners: []config.Listener{
			{Name: "media/oslo/udp", Protocol: config.TURNUDP, PublicAddress: address, PublicPort: 3478, Port: 3478},
		},
	}
	c.Default()
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(s.file+".next", data, 0o600), os.Rename(s.file+".next", s.file)); err != nil {
		t.Fatal(err)
	}
}

// caller sends requests from one address of the host.
type caller struct {
	url    string
	client *http.Client
}

func (s service) from(t *testing.T, address string) caller {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 100, MaxConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return caller{s.url, &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

// ask returns the status and the body of an answer.
func (c caller) ask(ctx context.Context, token string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// tally counts requests by status, and records their durations without stalls of the machine.
type tally struct {
	mu    sync.Mutex
	codes map[int]int
	took  []time.Duration
	errs  []error
}

func (c *tally) add(code int, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	c.codes[code]++
	if code == http.StatusCreated {
		c.took = append(c.took, took)
	}
}

// count returns the number of answers with a status.
func (c *tally) count(code int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.codes[code]
}

// quantile returns a quantile of the durations of successful requests.
func (c *tally) quantile(q float64) time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	slices.Sort(c.took)
	return c.took[min(len(c.took)-1, int(q*float64(len(c.took))))]
}

func (c *tally) String() string {
	return fmt.Sprintf("responses %v, %d errors, p50 %s, p99 %s", c.codes, len(c.errs), c.quantile(0.5), c.quantile(0.99))
}

// pace starts requests at a constant rate, independent of the answers, until ctx ends. Then it waits for all.
func pace(ctx context.Context, perSecond int, request func(i int)) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began, missed, running := time.Now(), 0, make(chan struct{}, perSecond/4)
	for i := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Requests that a stall of the machine prevented are skipped: they would all be sent at once.
		due := int(time.Since(began).Seconds()*float64(perSecond)) - missed
		missed += max(0, due-i-perSecond/20-1)
		for due = min(due, i+perSecond/20+1); i < due; i++ {
			select {
			case running <- struct{}{}:
				all.Go(func() { request(i); <-running })
			default: // the machine is too busy to answer more
			}
		}
	}
}

// measure sends requests at a constant rate until ctx ends, each with the next caller and the next token.
func measure(
	t *testing.T, ctx context.Context, machine *stall.Monitor, perSecond int, tokens []string, callers ...caller,
) *tally {
	all := &tally{codes: map[int]int{}}
	pace(ctx, perSecond, func(i int) {
		began := time.Now()
		code, _, err := callers[i%len(callers)].ask(t.Context(), tokens[i%len(tokens)])
		all.add(code, machine.Since(began), err)
	})
	return all
}

// J-03, J-13: 400 requests a second from 40 addresses, with invalid, forged or expired tokens or tokens of unknown
// keys, do not delay callers with valid tokens, even while the identity provider does not answer.
func TestGarbageTokens(t *testing.T) {
	p := newProvider(t)
	program := harnesstest.Build(t, harness.Auth)
	tokens := []string{"--jwt-issuer", issuer, "--jwt-audience", audience, "--jwt-jwks-url", p.URL}
	s, calm := start(t, program, tokens...), start(t, program, tokens...)
	unknownKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var garbage []string
	for i := range 100 {
		garbage = append(garbage,
			rand.Text(),
			token(unknownKey, "one", func(map[string]any) {}),
			token(p.key, "one", func(c map[string]any) { c["aud"] = "others" }),
			token(unknownKey, fmt.Sprint("unknown-", i), func(c map[string]any) { c["exp"] = 1 }))
		for j := range 8 { // the service cannot verify these tokens without the key
			garbage = append(garbage, token(unknownKey, fmt.Sprint("unknown-", i, "-", j), func(map[string]any) {}))
		}
	}
	var good []string
	for i := range 20 {
		good = append(good, token(p.key, "one", func(c map[string]any) { c["sub"] = fmt.Sprint("ada-", i) }))
	}
	// twin gets requests at the same times, with the same number of other requests without a token. It shows how much
	// of the figures is caused by the machine.
	friend, twin := s.from(t, "127.0.0.2"), calm.from(t, "127.0.0.2")
	for _, c := range []caller{friend, twin} {
		if code, body, err := c.ask(t.Context(), good[0]); code != http.StatusCreated {
			t.Fatalf("%d %s %v", code, body, err)
		}
	}
	machine := stall.Start()
	defer machine.Stop()
	p.slow.Store(true)
	var enemies, harmlessCallers []caller
	for i := range 40 {
		address := fmt.Sprintf("127.0.1.%d", i+1)
		enemies, harmlessCallers = append(enemies, s.from(t, address)), append(harmlessCallers, calm.from(t, address))
	}
	flood, stop := context.WithCancel(t.Context())
	refused, harmless := &tally{codes: map[int]int{}}, &tally{codes: map[int]int{}}
	var over sync.WaitGroup
	for all, send := range map[*tally]func(i int) (int, string, error){
		refused:  func(i int) (int, string, error) { return enemies[i%len(enemies)].ask(flood, garbage[i%len(garbage)]) },
		harmless: func(i int) (int, string, error) { return harmlessCallers[i%len(harmlessCallers)].ask(flood, "") },
	} {
		over.Go(func() {
			pace(flood, 400, func(i int) {
				if code, _, err := send(i); flood.Err() == nil {
					all.add(code, 0, err)
				}
			})
		})
	}
	// A busy machine needs more than the usual five seconds.
	measured, ended := context.WithTimeout(t.Context(), time.Minute)
	defer ended()
	var quiet *tally
	over.Go(func() { quiet = measure(t, measured, machine, 50, good, twin) })
	over.Go(func() {
		defer ended()
		_ = harness.Until(measured, func(context.Context) error { // the checks below report a timeout
			if n := refused.count(http.StatusUnauthorized); n < 2000 {
				return fmt.Errorf("%d responses to the attack", n)
			}
			return nil
		})
	})
	c := measure(t, measured, machine, 50, good, friend)
	stop()
	over.Wait()
	t.Logf("valid tokens during the attack: %s", c)
	t.Logf("twin without the attack:        %s", quiet)
	t.Logf(
		"attack:                    responses %v, %d errors; %d requests for the key set; longest stall of the machine %s",
		refused.codes, len(refused.errs), p.asked.Load(), machine.Worst(),
	)
	if len(c.errs) > len(quiet.errs) || len(c.codes) != 1 || c.codes[http.StatusCreated] == 0 {
		t.Errorf("valid tokens: %v, %v", c.codes, c.errs)
	}
	if p99, machine := c.quantile(0.99), quiet.quantile(0.99); p99 > 50*time.Millisecond+2*machine {
		t.Errorf("p99 of valid tokens is %s, that of the twin %s", p99, machine)
	}
	// on a busy machine, one request in a hundred may fail
	if len(refused.errs) > len(harmless.errs)+refused.codes[http.StatusUnauthorized]/100 {
		t.Errorf("%d connections were closed without a response, the first: %v", len(refused.errs), refused.errs[0])
	}
	if refused.codes[http.StatusCreated] > 0 || refused.codes[http.StatusUnauthorized] < 1000 {
		t.Errorf("responses to the attack: %v", refused.codes)
	}
	if n := p.asked.Load(); n > 4 {
		t.Errorf("the key set was fetched %d times", n)
	}
}

// rated is the number of requests a second that a replica is sized for.
const rated = 100

// at ten times the rated load, from four pods, no request fails and little memory is used. A change of the config
// is delivered meanwhile. Afterwards the service uses no more memory than before.
func TestTenTimesTheRatedLoad(t *testing.T) {
	program := harnesstest.Build(t, harness.Auth)
	s, twin := start(t, program), start(t, program)
	var pods []caller
	for i := range 4 {
		pods = append(pods, s.from(t, fmt.Sprintf("127.0.2.%d", i+1)))
	}
	machine := stall.Start()
	defer machine.Stop()
	if err := s.Until(
		t.Context(), func(ctx context.Context) error { return offers(ctx, pods[0], "192.0.2.9") },
	); err != nil {
		t.Fatal(err)
	}
	before := s.memory(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var both sync.WaitGroup
	var quiet *tally
	both.Go(func() { quiet = measure(t, ctx, machine, 20, []string{""}, twin.from(t, "127.0.0.2")) })
	both.Go(func() {
		began := time.Now()
		s.put(t, "192.0.2.10")
		if err := s.Until(
			ctx, func(ctx context.Context) error { return offers(ctx, s.from(t, "127.0.0.3"), "192.0.2.10") },
		); err != nil {
			t.Errorf("the config change does not take effect: %v", err)
		}
		t.Logf("a config change took effect after %s", machine.Since(began).Round(time.Millisecond))
	})
	all := measure(t, ctx, machine, 10*rated, []string{""}, pods...)
	both.Wait()
	t.Logf("at 10 times the rated load: %s", all)
	t.Logf("twin with low load: %s", quiet)
	after := s.memory(t)
	t.Logf("memory: %.0f MiB before, %.0f MiB after", before, after)
	if n := len(all.errs); n*100 > len(all.took) || len(all.codes) != 1 || len(all.took) < 10*rated {
		t.Errorf("responses %v, %d errors %v", all.codes, n, all.errs[:min(n, 3)])
	}
	if p99, low := all.quantile(0.99), quiet.quantile(0.99); p99 > 100*time.Millisecond+10*low {
		t.Errorf("p99 is %s, that of the twin %s", p99, low)
	}
	if after > 100 { // the chart allows 128 MiB
		t.Errorf("the service uses %.0f MiB", after)
	}
	if code, _, err := pods[0].ask(t.Context(), ""); code != http.StatusCreated {
		t.Errorf("afterwards: %d, %v", code, err)
	}
}

// offers reports whether an answer contains an address.
func offers(ctx context.Context, c caller, address string) error {
	code, body, err := c.ask(ctx, "")
	if err == nil && !strings.Contains(body, "turn:"+address+":") {
		err = fmt.Errorf("status %d: %s", code, body)
	}
	return err
}

// memory returns the resident memory of the process in MiB.
func (s service) memory(t *testing.T) float64 {
	t.Helper()
	bytes, err := harness.Metric(t.Context(), s.health+"/metrics", "process_resident_memory_bytes")
	if err != nil {
		t.Fatal(err)
	}
	return bytes / (1 << 20)
}
