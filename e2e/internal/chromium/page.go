// Package chromium controls a headless Chromium for tests: one page in a browser of its own. The script
// e2e/browser/drive.mjs controls the browser. npm installs the dependencies of the script in e2e/browser.
package chromium

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// startLimit bounds the start of a browser, and limit bounds an operation in it. On an idle machine both take seconds.
const (
	startLimit = 3 * time.Minute
	limit      = time.Minute
)

// Report is the test page's own report in window.__report.
type Report struct {
	Verdict  string `json:"verdict"` // idle, running, ok, failed
	Sentence string `json:"sentence"`
	Sent     int    `json:"sent"`
	Received int    `json:"received"`
	Lost     int    `json:"lost"`
	Pair     struct {
		Local struct {
			Type  string `json:"candidateType"`
			Relay string `json:"relayProtocol"`
		} `json:"local"`
	} `json:"pair"`
	RTT     *float64 `json:"rttMs"`
	Gap     float64  `json:"gap"`
	Error   *Fault   `json:"error"`
	Results []Result `json:"results"`
}

// Result is the result of the test page for one URL.
type Result struct {
	Transport     string   `json:"transport"`
	URL           string   `json:"url"`
	Verdict       string   `json:"verdict"`
	Sent          int      `json:"sent"`
	Received      int      `json:"received"`
	Lost          int      `json:"lost"`
	MaxGap        float64  `json:"maxGapMs"`
	RTT           *float64 `json:"rttMs"`
	Jitter        *float64 `json:"jitterMs"`
	PublicAddress string   `json:"publicAddress"` // of a stun: URL
	Error         *Fault   `json:"error"`
}

// Fault is the cause of a failure, according to the test page.
type Fault struct {
	Reason string `json:"reason"`
	Cause  string `json:"cause"`
	Hint   string `json:"hint"`
	Code   int    `json:"code"` // of the event icecandidateerror, or the HTTP status
}

// Gathered is the result of ICE gathering: a relay candidate, or the event icecandidateerror.
type Gathered struct {
	Candidate string `json:"candidate"`
	URL       string `json:"url"`
	ErrorCode int    `json:"errorCode"`
	ErrorText string `json:"errorText"`
}

// Page is a page in a browser of its own.
type Page struct {
	t     *testing.T
	input io.WriteCloser

	mu       sync.Mutex
	last     Report
	gathered Gathered
	done     []string // completed commands
	problems []string
	changed  chan struct{} // closed and replaced on every line
	ended    bool
}

// Open opens a URL in a new browser, and waits until the page is loaded. The browser closes when the test ends. It also
// trusts the given certificate authorities.
func Open(t *testing.T, url string, authorities ...string) *Page {
	t.Helper()
	return OpenBy(t, (*exec.Cmd).Start, url, authorities...)
}

// WithoutLoopback starts a browser that does not use the loopback interface in peer connections, as browsers of users.
func WithoutLoopback(c *exec.Cmd) error {
	c.Args = append(c.Args, "--allow-loopback-in-peer-connection")
	return c.Start()
}

// Resolving returns a function that starts a browser which resolves a host name to an address.
func Resolving(name, address string) func(*exec.Cmd) error {
	return func(c *exec.Cmd) error {
		c.Args = append(c.Args, "--host-resolver-rules=MAP "+name+" "+address)
		return c.Start()
	}
}

// OpenBy is Open with a function that starts the browser.
func OpenBy(t *testing.T, start func(*exec.Cmd) error, url string, authorities ...string) *Page {
	t.Helper()
	suite := filepath.Join(harnesstest.Root(t), "e2e/browser")
	cmd := exec.Command("node", filepath.Join(suite, "drive.mjs"), chromium(t, suite), t.TempDir(), url)
	cmd.Env = append(os.Environ(), "HOME="+home(t, authorities))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	input, err := cmd.StdinPipe()
	harnesstest.NoError(t, err)
	output, err := cmd.StdoutPipe()
	harnesstest.NoError(t, err)
	if err := start(cmd); err != nil {
		t.Fatalf("start node: %v: run `sudo apt-get install --yes nodejs npm`", err)
	}
	p := &Page{t: t, input: input, changed: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.listen(output)
	}()
	t.Cleanup(func() {
		input.Close()
		// On SIGTERM, node ends the browser.
		stuck := time.AfterFunc(limit, func() { cmd.Process.Signal(syscall.SIGTERM) })
		defer stuck.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("browser: %v\n%s", err, stderr.String())
		}
	})
	p.until("the page is loaded", startLimit, func() bool { return len(p.done) > 0 })
	return p
}

// home makes a home directory with the NSS database from which Chromium reads trusted CAs.
func home(t *testing.T, authorities []string) string {
	t.Helper()
	dir := t.TempDir()
	store := filepath.Join(dir, ".pki", "nssdb")
	harnesstest.NoError(t, os.MkdirAll(store, 0o700))
	certutil := func(args ...string) {
		t.Helper()
		out, err := exec.Command("certutil", append([]string{"-d", "sql:" + store}, args...)...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			t.Fatal("certutil is not installed: run `sudo apt-get install --yes libnss3-tools`")
		}
		if err != nil {
			t.Fatalf("certutil: %v\n%s", err, out)
		}
	}
	for i, file := range authorities {
		if i == 0 {
			certutil("-N", "--empty-password")
		}
		certutil("-A", "-n", file, "-t", "C,,", "-i", file)
	}
	return dir
}

// chromium returns the path of the browser. The npm package that controls the browser must be installed in the folder
// suite.
func chromium(t *testing.T, suite string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: run `sudo apt-get install --yes chromium`")
	}
	if _, err := os.Stat(filepath.Join(suite, "node_modules", "playwright-core")); err != nil {
		t.Fatal("playwright-core is not installed: run `npm --prefix e2e/browser ci`")
	}
	return path
}

// listen reads the driver's output until it ends.
func (p *Page) listen(output io.Reader) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var line struct {
			Report   *Report   `json:"report"`
			Gathered *Gathered `json:"gathered"`
			Problem  string    `json:"problem"`
			Done     string    `json:"done"`
		}
		err := json.Unmarshal(lines.Bytes(), &line)
		p.note(func() {
			switch {
			case err != nil:
				p.problems = append(p.problems, fmt.Sprintf("driver output %q: %v", lines.Text(), err))
			case line.Report != nil:
				p.last = *line.Report
			case line.Gathered != nil:
				p.gathered = *line.Gathered
			case line.Problem != "":
				p.problems = append(p.problems, line.Problem)
			case line.Done != "":
				p.done = append(p.done, line.Done)
			}
		})
	}
	p.note(func() { p.ended = true })
}

func (p *Page) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// until waits until cond holds, and returns the report at that time.
func (p *Page) until(what string, within time.Duration, cond func() bool) Report {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	for {
		p.mu.Lock()
		now, holds, ended, changed := p.last, cond(), p.ended, p.changed
		p.mu.Unlock()
		if holds {
			return now
		}
		if ended {
			p.t.Fatalf("wait until %s: the browser ended", what)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.t.Fatalf("wait until %s: %v; report of the page %+v, errors %q", what, ctx.Err(), now, p.Trouble())
		}
	}
}

// Reports waits until a report satisfies cond.
func (p *Page) Reports(what string, cond func(Report) bool) Report {
	p.t.Helper()
	return p.until(what, limit, func() bool { return cond(p.last) })
}

// Tell sends a command to the driver and waits until the command is completed.
func (p *Page) Tell(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.input, command); err != nil {
		p.t.Fatal(errors.Join(fmt.Errorf("tell browser to %s", command), err))
	}
	p.until(command, limit, func() bool { return len(p.done) > 0 && p.done[len(p.done)-1] == command })
}

// Gather makes the page gather relay candidates from an ICE server.
func (p *Page) Gather(server harness.ICEServer) Gathered {
	p.t.Helper()
	text, err := json.Marshal(server)
	harnesstest.NoError(p.t, err)
	p.Tell("gather " + string(text))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gathered
}

// Trouble returns all errors of the page.
func (p *Page) Trouble() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}
