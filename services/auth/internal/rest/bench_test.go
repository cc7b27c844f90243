package rest_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// BenchmarkIce measures GET /ice for all gateways of the service, and for one of them by its name. cpu-ns/op is the CPU
// time of the process, which other processes of the machine do not inflate.
func BenchmarkIce(b *testing.B) {
	for _, caller := range benchCallers(b) {
		for _, n := range []int{1, 10, 100} {
			for selected, query := range map[string]string{"all": "", "named": "&namespace=media&gateway=g0"} {
				b.Run(fmt.Sprintf("%s/%s/%d", caller.name, selected, n), func(b *testing.B) {
					handler := quiet(b, caller.policy, n)
					r := httptest.NewRequest(http.MethodGet, "/ice?service=turn"+query, nil)
					if caller.token != "" {
						r.Header.Set("Authorization", "Bearer "+caller.token)
					}
					b.ReportAllocs()
					began := cpuTime(b)
					for b.Loop() {
						w := httptest.NewRecorder()
						handler.ServeHTTP(w, r)
						if w.Code != http.StatusOK {
							b.Fatal(w.Body)
						}
					}
					b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}

// benchCaller is a caller of a benchmark, with the policy that accepts it.
type benchCaller struct {
	name, token string
	policy      *access.Policy
}

func benchCallers(b *testing.B) []benchCaller {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	claims := jwt.MapClaims{"iss": issuer, "aud": audience, "sub": "ada", "exp": time.Now().Add(time.Hour).Unix()}
	secret := []byte("0123456789abcdef0123456789abcdef")
	shared, err := access.NewPolicy(
		b.Context(), access.Config{Issuer: issuer, Audience: audience, SecretFile: write(b, "secret", secret)}, log)
	if err != nil {
		b.Fatal(err)
	}
	hs256, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		b.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		b.Fatal(err)
	}
	jwk, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: "rsa"}})
	if err != nil {
		b.Fatal(err)
	}
	set, err := json.Marshal(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{jwk.Marshal()}})
	if err != nil {
		b.Fatal(err)
	}
	published, err := access.NewPolicy(
		b.Context(), access.Config{Issuer: issuer, Audience: audience, JWKSFile: write(b, "jwks.json", set)}, log)
	if err != nil {
		b.Fatal(err)
	}
	signed := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	signed.Header["kid"] = "rsa"
	rs256, err := signed.SignedString(key)
	if err != nil {
		b.Fatal(err)
	}
	return []benchCaller{{"open", "", open()}, {"HS256", hs256, shared}, {"RS256", rs256, published}}
}

// cpuTime returns the CPU time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// quiet returns a service of n gateways that logs as in production, without requests.
func quiet(b *testing.B, policy *access.Policy, n int) http.Handler {
	b.Helper()
	directory := gateway.NewDirectory("", time.Now, slog.New(slog.DiscardHandler))
	c := gateways()[1]
	for i := range n {
		c.Admin = config.Admin{Name: fmt.Sprintf("media/g%d", i)}
		directory.Apply(discovery.Event{ID: c.Admin.Name, Config: c})
	}
	fleet := rest.NewFleet(rest.Clusters{All: gateway.Clusters{{Directory: directory}}})
	return rest.New(rest.Options{
		Fleet: fleet, Policy: policy, DefaultTTL: time.Hour, MaxTTL: time.Hour,
		Metrics: rest.NewMetrics(prometheus.NewRegistry(), fleet, open()),
		Log:     slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Audit:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now:     time.Now,
	})
}
