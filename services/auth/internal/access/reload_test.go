package access

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hashOfKey returns the hash of an API key as in a policy file.
func hashOfKey(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

// logged is a log that a goroutine writes to.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// withFile runs a test in virtual time with a policy file and an issuer, https://issuer.example.org, whose first key is
// "first". It gives the test a function that changes the file and waits until it is read.
func withFile(t *testing.T, text string, test func(t *testing.T, i *issuer, p *Policy, change func(text string), log *logged)) {
	t.Helper()
	real := http.DefaultTransport
	defer func() { http.DefaultTransport = real }()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
		http.DefaultTransport = away{i}
		i.rotate(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		change := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * fileInterval)
			synctest.Wait()
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		log := &logged{}
		p, err := OpenPolicy(ctx, path, slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		test(t, i, p, change, log)
	})
}

// A file that a program writes piece by piece is used only when it is complete, because a part of a policy may permit
// more.
func TestPolicyFileIsWrittenInPlace(t *testing.T) {
	const whole = "version: v1\nopen:\n  maxTTL: 60\n  gateways: [media/door]\n"
	withFile(t, whole, func(t *testing.T, _ *issuer, p *Policy, _ func(string), log *logged) {
		path := p.file.path
		time.Sleep(fileInterval / 2)
		synctest.Wait()
		for range 3 {
			for end := range len(whole) {
				if err := os.WriteFile(path, []byte(whole[:end]), 0o600); err != nil {
					t.Fatal(err)
				}
				time.Sleep(fileInterval)
				synctest.Wait()
				who, err := p.Identify(nil, "", "test")
				if err != nil || who.Grant.Gateways.Contains("x", "y") || who.Grant.MaxTTL != time.Minute {
					t.Fatalf("the first %d bytes of the file are in force: %+v, %v", end, who.Grant, err)
				}
			}
		}
		if text := log.take(); text != "" {
			t.Errorf("log %s", text)
		}
	})
}

const fromURL = "version: v1\nissuers:\n- issuer: issuer\n  audience: audience\n  jwksURL: https://issuer.example.org/keys\n"

// A changed policy file applies to all tokens, including tokens that were verified before. An invalid or missing file
// changes nothing. Its error with file, line and field is logged once and shown in the state.
func TestPolicyFileIsReadAgain(t *testing.T) {
	withFile(t, fromURL, func(t *testing.T, i *issuer, p *Policy, change func(string), log *logged) {
		h := i.headers(t, "first")
		accepted(t, p, h)
		change(fromURL + "  gateways: [media/*]\n  user: 'u-{sub}'\n")
		who, err := p.Identify(h, "", "test")
		if err != nil || who.UserID != "u-ada" || who.Grant.Gateways.Contains("x", "y") {
			t.Errorf("%+v, %v: the remembered token has the former policy", who, err)
		}
		if n := i.fetches.Load(); n != 1 {
			t.Errorf("%d fetches: a change of the policy must keep the keys", n)
		}
		if text := log.take(); !strings.Contains(text, "policy has changed") {
			t.Errorf("log %s", text)
		}
		for text, want := range map[string]string{
			fromURL + "  gateway: []\n": "policy.yaml:6: issuers[0].gateway: is unknown",
			"":                          "policy.yaml:1: is empty",
			"version: v1\nissuers:\n- {issuer: a, audience: b, jwksFile: /nowhere}\n": "nowhere: no such file",
		} {
			change(text)
			time.Sleep(10 * fileInterval)
			if text := log.take(); strings.Count(text, "keep last valid policy") != 1 || !strings.Contains(text, want) {
				t.Errorf("log %s, want %s once", text, want)
			}
			if k := p.Keys(); !strings.Contains(k.Problem, want) || time.Since(k.ReadAt) < fileInterval {
				t.Errorf("state %+v, want %s", k, want)
			}
			if who, err := p.Identify(h, "", "test"); err != nil || who.UserID != "u-ada" {
				t.Errorf("%+v, %v: the last valid policy is not in force", who, err)
			}
		}
		change("version: v1\nopen: {}\n")
		if who, err := p.Identify(nil, "", "test"); err != nil || who.Known || !p.Open() {
			t.Errorf("%+v, %v", who, err)
		}
		if k := p.Keys(); k.Problem != "" || time.Since(k.ReadAt) > fileInterval {
			t.Errorf("state %+v", k)
		}
		before := i.fetches.Load()
		time.Sleep(3 * refreshInterval)
		if n := i.fetches.Load(); n != before {
			t.Errorf("the keys of an issuer that the policy does not have any more are fetched %d times", n-before)
		}
	})
}

// J-01, J-05: a policy of several issuers checks each token with the keys, the algorithms and the audience of its own
// issuer.
func TestTokensAreCheckedByTheirOwnIssuer(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(secretText), 0o600); err != nil {
		t.Fatal(err)
	}
	other := "- issuer: other\n  audience: elsewhere\n  secretFile: " + secret + "\n"
	withFile(t, fromURL+other, func(t *testing.T, i *issuer, p *Policy, _ func(string), _ *logged) {
		accepted(t, p, i.headers(t, "first"))
		claims := func(iss, aud string) string {
			return fmt.Sprintf(`{"iss":"%s","aud":"%s","sub":"ada","exp":%d}`, iss, aud, time.Now().Add(time.Minute).Unix())
		}
		if who, err := p.Identify(signed(t, plainHeader, claims("other", "elsewhere")), "", "test"); err != nil ||
			who.Caller == "subject 0 ada" {
			t.Errorf("%+v, %v", who, err)
		}
		for token, want := range map[string]Reason{
			claims("issuer", "audience"):  TokenAlgorithm, // HMAC for the issuer with public keys
			claims("other", "audience"):   TokenAudience,
			claims("nobody", "audience"):  TokenIssuer,
			claims("Other", "elsewhere"):  TokenIssuer,
			claims("other ", "elsewhere"): TokenIssuer,
		} {
			refusedFor(t, p, signed(t, plainHeader, token), want)
		}
	})
}

// J-03, J-04: a remembered token is refused after it has expired, or after its key was removed or replaced.
func TestRememberedTokens(t *testing.T) {
	withFile(t, fromURL, func(t *testing.T, i *issuer, p *Policy, _ func(string), _ *logged) {
		for name, forget := range map[string]func(){
			"its key is gone":     func() { i.mu.Lock(); delete(i.keys, "first"); i.mu.Unlock(); i.rotate(t, "second") },
			"another key has kid": func() { i.rotate(t, "first") },
			"it has expired":      func() {},
		} {
			i.rotate(t, "first")
			time.Sleep(refreshInterval + time.Second)
			key := i.keys["first"]
			h := lasting(t, key, time.Hour)
			accepted(t, p, h)
			accepted(t, p, h)
			if n := len(p.state.Load().remembered.entries); n != 1 {
				t.Errorf("%s: %d remembered tokens", name, n)
			}
			forget()
			wait := refreshInterval + time.Second
			if name == "it has expired" {
				wait = time.Hour + leeway
			}
			accepted(t, p, h)
			time.Sleep(wait)
			if who, err := p.Identify(h, "", "test"); err == nil {
				t.Errorf("%s: %+v", name, who)
			}
			if n := len(p.state.Load().remembered.entries); n != 0 {
				t.Errorf("%s: %d remembered tokens", name, n)
			}
		}
	})
}

// A caller with many tokens displaces only its own, and the number of remembered tokens is bounded.
func TestRememberedTokensAreBounded(t *testing.T) {
	r := newRemembered()
	add := func(caller string, n int) (hash [sha256.Size]byte) {
		hash = sha256.Sum256(fmt.Append(nil, caller, n))
		r.add(hash, &entry{who: Identity{Caller: caller}, until: time.Now().Add(time.Hour)})
		return hash
	}
	good := add("good", 0)
	for n := range 10_000 {
		add("greedy", n)
	}
	if len(r.entries) != 1+callerShare || r.entries[good] == nil || len(r.callers["greedy"]) != callerShare {
		t.Errorf("%d entries", len(r.entries))
	}
	add("greedy", 9_999) // a token that is already remembered
	if len(r.callers["greedy"]) != callerShare {
		t.Errorf("%d entries of one caller after a repeated one", len(r.callers["greedy"]))
	}
	for n := range 2 * maxRemembered {
		add(fmt.Sprint("caller ", n), 0)
	}
	var listed int
	for _, own := range r.callers {
		listed += len(own)
	}
	if len(r.entries) != maxRemembered || listed != maxRemembered {
		t.Errorf("%d entries, %d by caller, want %d", len(r.entries), listed, maxRemembered)
	}
}

// An API key is replaced without an interruption, ends at its expiry, and is not found by its hash or its name.
func TestAPIKeyRotation(t *testing.T) {
	text := func(hashes string) string { return "version: v1\nkeys:\n- {name: shop, hashes: [" + hashes + "]}\n" }
	withFile(t, text(hashOfKey("one")), func(t *testing.T, _ *issuer, p *Policy, change func(string), _ *logged) {
		wants := func(step string, want map[string]bool) {
			t.Helper()
			for key, ok := range want {
				who, err := p.Identify(http.Header{"Authorization": {"Bearer " + key}}, "", "test")
				if (err == nil) != ok || ok && (who.Key != "shop" || who.Caller != "key shop") {
					t.Errorf("%s: key %q: %+v, %v", step, key, who, err)
				}
			}
		}
		wants("one", map[string]bool{"one": true, "two": false, "": false, "shop": false, hashOfKey("one"): false,
			hashOfKey("one")[7:]: false, "One": false, "one one": false, strings.Repeat("x", 10_000): false, "a.b.c": false})
		change(text(hashOfKey("one") + ", " + hashOfKey("two")))
		wants("both", map[string]bool{"one": true, "two": true, "three": false})
		change(text(hashOfKey("two")))
		wants("two", map[string]bool{"one": false, "two": true})
		change(strings.Replace(text(hashOfKey("two")), "name: shop", "name: shop, expires: "+
			time.Now().Add(time.Hour).UTC().Format(time.RFC3339), 1))
		wants("before its expiry", map[string]bool{"two": true})
		time.Sleep(time.Hour)
		refusedFor(t, p, http.Header{"Authorization": {"Bearer two"}}, APIKeyExpired)
	})
}

// discovering is an issuer with OpenID Connect Discovery.
type discovering struct {
	*issuer
	mu       sync.Mutex
	document string
	asked    []string
	tokens   []string
}

func (d *discovering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.asked = append(d.asked, r.Host+r.URL.Path)
	d.tokens = append(d.tokens, r.Header.Get("Authorization"))
	document := d.document
	d.mu.Unlock()
	switch {
	case r.URL.Path == "/.well-known/openid-configuration" && document == "redirect":
		http.Redirect(w, r, "https://evil.example.org/.well-known/openid-configuration", http.StatusFound)
	case r.URL.Path == "/.well-known/openid-configuration":
		_, _ = w.Write([]byte(document))
	default:
		d.issuer.ServeHTTP(w, r)
	}
}

// handlerTransport answers requests with a handler, without a network.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	served := r.Clone(r.Context())
	served.Host = r.URL.Host
	h.ServeHTTP(w, served)
	return w.Result(), nil
}

const login = "https://login.example.org"

func discovery(jwks string) string { return `{"issuer":"` + login + `","jwks_uri":"` + jwks + `"}` }

// J-03: OpenID Connect Discovery leads only to the JWK set of the issuer. A changed jwks_uri is used.
func TestDiscovery(t *testing.T) {
	real := http.DefaultTransport
	defer func() { http.DefaultTransport = real }()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		d := &discovering{issuer: &issuer{keys: map[string]*ecdsa.PrivateKey{}}, document: discovery(login + "/keys")}
		http.DefaultTransport = handlerTransport{d}
		d.rotate(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		rules, err := ParseRules("p.yaml", []byte("version: v1\nissuers:\n- {issuer: "+login+", audience: audience, "+
			"discovery: true, tokenFile: "+token+", jwksHosts: [\"keys.example.org:8443\"]}\n"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := newState(ctx, rules, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p := &Policy{}
		p.state.Store(s)
		asks := func(kid string) error {
			_, err := p.Identify(issued(t, d.issuer.keys[kid], kid, login, time.Hour), "", "test")
			return err
		}
		if err := asks("first"); err != nil {
			t.Fatal(err)
		}
		hosts := func() string {
			d.mu.Lock()
			defer d.mu.Unlock()
			defer func() { d.asked, d.tokens = nil, nil }()
			return strings.Join(d.asked, " ") + " " + strings.Join(d.tokens, "|")
		}
		if got, want := hosts(), "login.example.org/.well-known/openid-configuration login.example.org/keys Bearer pod|Bearer pod"; got != want {
			t.Errorf("requests %s, want %s", got, want)
		}
		set := func(document string) {
			d.mu.Lock()
			d.document = document
			d.mu.Unlock()
			time.Sleep(refreshInterval)
			synctest.Wait()
		}
		for _, bad := range []string{
			"redirect", "", "[]", discovery("http://login.example.org/keys"), discovery("https://evil.example.org/keys"),
			discovery("https://login.example.org:444/keys"), discovery("https://login.example.org@evil.example.org/keys"),
			discovery("https://login.example.org.evil.example.org/keys"), discovery("file:///etc/keys"), discovery("/keys"),
			`{"issuer":"` + login + `/","jwks_uri":"` + login + `/keys"}`, `{"jwks_uri":"` + login + `/keys"}`,
			strings.Repeat(" ", maxSet+1),
		} {
			hosts()
			set(bad)
			if got := hosts(); strings.Contains(got, "evil") || strings.Contains(got, "/keys") || !strings.Contains(got, "login") {
				t.Errorf("%.80s: requests %s", bad, got)
			}
			if k := p.Keys(); k.Problem == "" {
				t.Errorf("%.80s: no problem", bad)
			}
			if err := asks("first"); err != nil {
				t.Errorf("%.80s: the known keys are lost: %v", bad, err)
			}
		}
		hosts()
		d.rotate(t, "second")
		set(discovery("https://keys.example.org:8443/v2"))
		if got, want := hosts(), "login.example.org/.well-known/openid-configuration keys.example.org:8443/v2 Bearer pod|"; got != want {
			t.Errorf("requests %s, want %s: the token of the pod is for the issuer only", got, want)
		}
		if err := asks("second"); err != nil || p.Keys().Problem != "" {
			t.Errorf("after a change of jwks_uri: %v, %+v", err, p.Keys())
		}
	})
}

// The server of the keys is verified with caFile, which is read at each fetch.
func TestKeysBehindAnOwnCA(t *testing.T) {
	i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
	i.rotate(t, "first")
	server := httptest.NewTLSServer(i)
	defer server.Close()
	folder := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tt := range map[string]struct {
		pem string
		ok  bool
	}{
		"its CA":     {pemOf(server.Certificate().Raw), true},
		"no PEM":     {"x", false},
		"another CA": {pemOf(otherCertificate(t)), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := OpenPolicy(ctx, write("policy.yaml", "version: v1\nissuers:\n- {issuer: issuer, audience: audience, jwksURL: "+
				server.URL+", caFile: "+write("ca.crt", tt.pem)+"}\n"), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Identify(i.headers(t, "first"), "", "test"); (err == nil) != tt.ok {
				t.Errorf("%v, state %+v", err, p.Keys())
			}
		})
	}
}

func pemOf(certificate []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}

// otherCertificate returns a self-signed certificate that no server of the tests has.
func otherCertificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
