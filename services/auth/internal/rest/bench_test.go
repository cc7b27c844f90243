package rest_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
	"github.com/stunner-gateway/stunner/services/auth/internal/rest"
)

// BenchmarkIce measures GET /ice for all gateways.
func BenchmarkIce(b *testing.B) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	locked, err := access.NewPolicy(
		b.Context(), access.Config{Issuer: issuer, Audience: audience, SecretFile: write(b, "secret", secret)},
		slog.New(slog.DiscardHandler),
	)
	if err != nil {
		b.Fatal(err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(good())).SignedString(secret)
	if err != nil {
		b.Fatal(err)
	}
	for name, policy := range map[string]*access.Policy{"open": open(), "HS256": locked} {
		for _, n := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				handler := quiet(b, policy, n)
				r := httptest.NewRequest(http.MethodGet, "/ice?service=turn&username=ada", nil)
				if !policy.Open() {
					r = httptest.NewRequest(http.MethodGet, "/ice?service=turn", nil)
					r.Header.Set("Authorization", "Bearer "+token)
				}
				b.ReportAllocs()
				for b.Loop() {
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					if w.Code != http.StatusOK {
						b.Fatal(w.Body)
					}
				}
			})
		}
	}
}

// quiet returns a service of n gateways that logs as in production, without requests.
func quiet(b *testing.B, policy *access.Policy, n int) http.Handler {
	b.Helper()
	directory := gateway.NewDirectory(time.Now, slog.New(slog.DiscardHandler))
	c := gateways()[1]
	for i := range n {
		c.Admin = config.Admin{Name: fmt.Sprintf("media/g%d", i)}
		directory.Apply(discovery.Event{ID: c.Admin.Name, Config: c})
	}
	return rest.New(rest.Options{
		Directory: directory, Policy: policy, DefaultTTL: time.Hour, MaxTTL: time.Hour,
		Metrics: rest.NewMetrics(prometheus.NewRegistry(), directory, open()),
		Log:     slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelInfo})),
		Audit:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now:     time.Now,
	})
}
