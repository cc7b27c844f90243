package demo

import (
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func TestPageIsServedUnderAStrictPolicy(t *testing.T) {
	for path, media := range map[string]string{
		"/":         "text/html; charset=utf-8",
		"/demo.js":  "text/javascript; charset=utf-8",
		"/demo.css": "text/css; charset=utf-8",
		"/icon.svg": "image/svg+xml",

		"/ice-servers/index.js": "text/javascript; charset=utf-8",
	} {
		w := httptest.NewRecorder()
		Page().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != media {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'self';") ||
			strings.Contains(got, "unsafe") {
			t.Errorf("%s: policy %q", path, got)
		}
	}
}

// TestPageIsSelfContained checks that the page contains nothing that its policy would block: external addresses, and
// inline styles and scripts.
func TestPageIsSelfContained(t *testing.T) {
	elsewhere := regexp.MustCompile(
		`(?i)(src|href)\s*=\s*"(https?:)?//|@import|(?-i:url\()|\sstyle=|\son[a-z]+="|<style|(from|import)\s*\(?["'][^."']`,
	)
	read := 0
	err := fs.WalkDir(files, "page", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		if hit := elsewhere.Find(data); hit != nil {
			t.Errorf("%s holds %q", path, hit)
		}
		read++
		return err
	})
	if err != nil || read != 9 {
		t.Errorf("%d files: %v", read, err)
	}
}

func TestEcho(t *testing.T) {
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		offer, _ := io.ReadAll(r.Body)
		switch string(offer) {
		case "offer":
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "answer to "+r.Header.Get("Content-Type")+r.Header.Get("Authorization"))
		case "away":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
		default:
			http.Error(w, "no offer", http.StatusBadRequest)
		}
	}))
	defer peer.Close()
	tests := map[string]struct {
		media, body string
		status      int
		want        string
	}{
		"an offer is answered, and the token stays here": {
			"application/sdp", "offer", 200, "answer to application/sdp",
		},
		"what the peer refuses": {
			"application/sdp", "nonsense", 502, "the echo peer refused the offer\n",
		},
		"a redirect is not followed": {
			"application/sdp", "away", 502, "the echo peer refused the offer\n",
		},
		"another media type": {
			"text/plain", "offer", 415, "the body must be application/sdp\n",
		},
		"too much": {
			"application/sdp", strings.Repeat("v", maxSDP+1), 413, "the offer must have at most 65536 bytes\n",
		},
	}
	u, err := url.Parse(peer.URL)
	if err != nil {
		t.Fatal(err)
	}
	echo := NewEcho(u, slog.New(slog.DiscardHandler))
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/demo/echo", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.media)
			r.Header.Set("Authorization", "Bearer secret")
			w := httptest.NewRecorder()
			echo.ServeHTTP(w, r)
			if w.Code != tt.status || w.Body.String() != tt.want {
				t.Errorf("%d %q", w.Code, w.Body)
			}
		})
	}
	t.Run("no peer", func(t *testing.T) {
		peer.Close()
		r := httptest.NewRequest(http.MethodPost, "/demo/echo", strings.NewReader("offer"))
		r.Header.Set("Content-Type", sdpType)
		w := httptest.NewRecorder()
		echo.ServeHTTP(w, r)
		if w.Code != http.StatusBadGateway || strings.Contains(w.Body.String(), "127.0.0.1") {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}
