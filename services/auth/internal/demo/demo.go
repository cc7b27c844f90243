// Package demo serves a test page that checks from a browser whether a gateway relays. The page is one HTML file, one
// JavaScript module and one style sheet, without a framework and external files. It gets its ICE servers by the
// TypeScript client, which make gen compiles into the folder ice-servers of the page. The echo peer of the page answers
// SDP offers and echoes messages on data channels. The page reaches the echo peer through Echo, so that the browser needs
// one origin only.
package demo

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"time"
)

//go:embed page
var files embed.FS

// policy is the Content-Security-Policy of the test page. The page may load files from its own origin only, and make
// requests to that origin only.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// Page returns a handler for the files of the page.
func Page() http.Handler {
	root, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	server := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		server.ServeHTTP(w, r)
	})
}

// Limits of requests from the page to the echo peer.
const (
	maxSDP      = 64 << 10
	echoTimeout = 8 * time.Second // less than the write timeout of the server
	sdpType     = "application/sdp"
)

// Echo forwards SDP offers to the echo peer.
type Echo struct {
	// URL accepts offers by POST.
	URL *url.URL
	Log *slog.Logger
	// Client sends the offers.
	Client *http.Client
}

// NewEcho returns an Echo for the echo peer at a URL. It follows no redirects, which could lead to another server.
func NewEcho(u *url.URL, log *slog.Logger) *Echo {
	return &Echo{URL: u, Log: log, Client: &http.Client{
		Timeout:       echoTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ServeHTTP forwards a POST with an SDP offer as body.
func (e *Echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != sdpType {
		http.Error(w, "the body must be "+sdpType, http.StatusUnsupportedMediaType)
		return
	}
	offer, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSDP))
	if err != nil {
		http.Error(w, fmt.Sprintf("the offer must have at most %d bytes", maxSDP), http.StatusRequestEntityTooLarge)
		return
	}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, e.URL.String(), bytes.NewReader(offer))
	if err != nil {
		e.unreachable(w, err)
		return
	}
	request.Header.Set("Content-Type", sdpType)
	response, err := e.Client.Do(request)
	if err != nil {
		e.unreachable(w, err)
		return
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxSDP))
	if err != nil {
		e.unreachable(w, err)
		return
	}
	if response.StatusCode/100 != 2 {
		e.Log.Warn("echo peer refused offer", "status", response.StatusCode)
		http.Error(w, "the echo peer refused the offer", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", sdpType)
	_, _ = w.Write(answer) // fails only if the browser has disconnected
}

func (e *Echo) unreachable(w http.ResponseWriter, err error) {
	e.Log.Warn("echo peer does not answer", "url", e.URL.Redacted(), "error", err)
	http.Error(w, "the echo peer does not answer", http.StatusBadGateway)
}
