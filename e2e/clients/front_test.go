package clients

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// front is a web server in front of the auth service, as a web app has it. It serves the pages and the TypeScript
// client, and answers some requests for ICE servers with faults.
type front struct {
	*httptest.Server
	auth http.Handler

	mu    sync.Mutex
	asked []ask
	seen  map[string]bool // user names of the credentials so far
}

// ask is a request for ICE servers.
type ask struct {
	at    time.Time
	fault string
}

// faults are the answers to every second request, from the second one on. With one fault in a lifetime, the client has
// enough time to repeat its request.
var faults = []string{"429", "503", "broken connection"}

const retryAfter = time.Second

func newFront(t *testing.T, stack *harness.Stack) *front {
	t.Helper()
	auth, err := url.Parse(stack.AuthURL())
	harnesstest.NoError(t, err)
	f := &front{auth: httputil.NewSingleHostReverseProxy(auth), seen: map[string]bool{}}
	root := harnesstest.Root(t)
	files := func(prefix, folder string) http.Handler {
		return http.StripPrefix(prefix, http.FileServer(http.Dir(filepath.Join(root, folder))))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/ice-servers", f.iceServers)
	mux.HandleFunc("POST /seen/{username}", func(_ http.ResponseWriter, r *http.Request) {
		f.see(t, r.PathValue("username"))
	})
	mux.Handle("GET /page/", files("/page/", "e2e/clients/page"))
	mux.Handle("GET /client/", files("/client/", "clients/typescript/dist"))
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *front) iceServers(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := ""
	if n := len(f.asked); n%2 == 1 {
		fault = faults[n/2%len(faults)]
	}
	f.asked = append(f.asked, ask{time.Now(), fault})
	f.mu.Unlock()
	switch fault {
	case "":
		f.auth.ServeHTTP(w, r)
	case "broken connection":
		panic(http.ErrAbortHandler)
	default:
		status, _ := strconv.Atoi(fault)
		w.Header().Set("Retry-After", fmt.Sprint(int(retryAfter/time.Second)))
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"status":%d,"reason":"no_config","detail":"A fault of the test."}`, status)
	}
}

// see fails the test if the credential with a user name has expired. It reports whether the credential is new.
func (f *front) see(t *testing.T, username string) (first bool) {
	t.Helper()
	seconds, _, _ := strings.Cut(username, ":")
	expires, err := strconv.ParseInt(seconds, 10, 64)
	if left := time.Until(time.Unix(expires, 0)); err != nil || left <= 0 {
		t.Errorf("the credential of %s expired %s ago, %v", username, -left, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first = !f.seen[username]
	f.seen[username] = true
	return first
}

// renewedThroughFaults checks that the client got each fault, waited for the requested time, and made no more requests
// than necessary.
func (f *front) renewedThroughFaults(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		t.Fatal("the client made no request")
	}
	met := map[string]bool{}
	for i, a := range f.asked[1:] {
		met[a.fault] = true
		before := f.asked[i]
		switch wait := a.at.Sub(before.at); {
		case before.fault == "" && wait < lifetime*time.Second/4:
			// The client measures from the time before it connects.
			t.Errorf("request %d came %s after the last answer, want half of a lifetime", i+2, wait)
		case before.fault != "" && before.fault != "broken connection" && wait < retryAfter:
			t.Errorf("request %d came %s after %s, want %s", i+2, wait, before.fault, retryAfter)
		}
	}
	for _, fault := range faults {
		if !met[fault] {
			t.Errorf("the client did not meet the fault %s in %d requests", fault, len(f.asked))
		}
	}
	// The client makes one request at the start, and at most one in each half of a lifetime. It may repeat each request
	// once.
	if n := len(f.asked); n > 2*(2*lifetimes+1) {
		t.Errorf("%d requests in %d lifetimes", n, lifetimes)
	}
	if n := len(f.seen); n < lifetimes {
		t.Errorf("%d credentials were used in %d lifetimes", n, lifetimes)
	}
}
