package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The exit code shows whether the server at a URL can serve before the timeout ends.
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
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if got := command(
			ctx, []string{"check", c.url}, func(string) string { return "" }, &said, ending{&said, cancel},
		); got != c.want || !strings.Contains(said.String(), c.says) {
			t.Errorf(
				"check %s, which answers %d: exit code %d and %q, want %d and %q", c.url, c.code, got, said.String(),
				c.want, c.says,
			)
		}
	}
}

// ending is the standard error of a check that ends after its first failed request.
type ending struct {
	io.Writer
	end func()
}

func (e ending) Write(b []byte) (int, error) {
	defer e.end()
	return e.Writer.Write(b)
}

// A server that starts to serve during a check passes it.
func TestCheck_WaitsForTheServer(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	var said bytes.Buffer
	if code := check(t.Context(), server.URL, &said, &said); code != 0 || requests != 3 {
		t.Errorf("exit code %d after %d requests, want 0 after 3:\n%s", code, requests, &said)
	}
}
