package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The exit code shows whether the server at a URL can serve.
func TestCheck(t *testing.T) {
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
	defer server.Close()
	for _, c := range []struct {
		url        string
		code, want int
		says       string
	}{
		{server.URL, http.StatusOK, 0, "200 OK"},
		{server.URL, http.StatusUnauthorized, 0, "401 Unauthorized"},
		{server.URL, http.StatusServiceUnavailable, exitFailure, "503 Service Unavailable"},
		{"http://127.0.0.1:1", http.StatusOK, exitFailure, "refused"},
		{"::", http.StatusOK, exitFailure, "missing protocol scheme"},
	} {
		code = c.code
		var said bytes.Buffer
		if got := command(
			t.Context(), []string{"check", c.url}, func(string) string { return "" }, &said, &said,
		); got != c.want || !strings.Contains(said.String(), c.says) {
			t.Errorf(
				"check %s, which answers %d: exit code %d and %q, want %d and %q", c.url, c.code, got, said.String(),
				c.want, c.says,
			)
		}
	}
}
