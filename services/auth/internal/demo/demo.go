// Package demo is the test page: does my gateway work, from this browser? It is one page, one module and one style sheet, without a
// framework and without anything from elsewhere. Its peer answers SDP offers and echoes what arrives on data channels; the page
// reaches it through Echo, so that the browser talks to one origin only.
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

// policy lets the page load its own files and talk to its own origin: nothing inline, nothing from elsewhere, no frame around it.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// Page serves the files of the page.
func Page() http.Handler {
	root, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	server := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Referrer-Policy", "no-referrer")
		server.ServeHTTP(w, r)
	})
}

// Limits of what passes between page and echo peer.
const (
	maxSDP      = 64 << 10
	echoTimeout = 8 * time.Second // less than the time that the server gives an answer
	sdpType     = "application/sdp"
)

// Echo hands SDP offers on to the echo peer.
type Echo struct {
	// URL takes offers by POST and answers them.
	URL *url.URL
	Log *slog.Logger
	// Client sends the offers.
	Client *http.Client
}

// NewEcho returns an Echo for the peer at u. It follows no redirect: the peer is the one that was configured.
func NewEcho(u *url.URL, log *slog.Logger) *Echo {
	return &Echo{URL: u, Log: log, Client: &http.Client{
		Timeout:       echoTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ServeHTTP answers POST with an SDP offer as body.
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
		e.Log.Warn("echo peer refuses offer", "status", response.StatusCode)
		http.Error(w, "the echo peer refused the offer", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", sdpType)
	_, _ = w.Write(answer) // a browser that is gone needs no answer
}

func (e *Echo) unreachable(w http.ResponseWriter, err error) {
	e.Log.Warn("echo peer does not answer", "url", e.URL.Redacted(), "error", err)
	http.Error(w, "the echo peer does not answer", http.StatusBadGateway)
}
