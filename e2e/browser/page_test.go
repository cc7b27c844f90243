package browser

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

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// report is the test page's own report in window.__report.
type report struct {
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
	RTT   *float64 `json:"rttMs"`
	Gap   float64  `json:"gap"`
	Error *struct {
		Cause string `json:"cause"`
		Hint  string `json:"hint"`
		Code  int    `json:"code"` // of the event icecandidateerror
	} `json:"error"`
}

// gathered is the result of ICE gathering: a relay candidate, or the event icecandidateerror.
type gathered struct {
	Candidate string `json:"candidate"`
	URL       string `json:"url"`
	ErrorCode int    `json:"errorCode"`
	ErrorText string `json:"errorText"`
}

// page is a page in a browser of its own.
type page struct {
	t     *testing.T
	input io.WriteCloser

	mu       sync.Mutex
	last     report
	gathered gathered
	done     []string // completed commands
	problems []string
	changed  chan struct{} // closed and replaced on every line
	ended    bool
}

// open opens a URL in a new browser, which closes when the test ends. The browser also trusts the given certificate
// authorities.
func open(t *testing.T, url string, authorities ...string) *page {
	t.Helper()
	return openBy(t, (*exec.Cmd).Start, url, authorities...)
}

// openBy is open with a function that starts the browser.
func openBy(t *testing.T, start func(*exec.Cmd) error, url string, authorities ...string) *page {
	t.Helper()
	cmd := exec.Command("node", "drive.mjs", chromium(t), t.TempDir(), url)
	cmd.Env = append(os.Environ(), "HOME="+home(t, authorities))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(cmd); err != nil {
		t.Fatalf("start node: %v: run `sudo apt-get install --yes nodejs npm`", err)
	}
	p := &page{t: t, input: input, changed: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.listen(output)
	}()
	t.Cleanup(func() {
		input.Close()
		// lets node end the browser
		stuck := time.AfterFunc(10*time.Second, func() { cmd.Process.Signal(syscall.SIGTERM) })
		defer stuck.Stop()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("browser: %v\n%s", err, stderr.String())
		}
	})
	return p
}

// home makes a home directory with the NSS database from which Chromium reads trusted CAs.
func home(t *testing.T, authorities []string) string {
	t.Helper()
	dir := t.TempDir()
	store := filepath.Join(dir, ".pki", "nssdb")
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
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

// chromium returns the path of the browser.
func chromium(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: run `sudo apt-get install --yes chromium`")
	}
	if _, err := os.Stat(filepath.Join("node_modules", "playwright-core")); err != nil {
		t.Fatal("playwright-core is not installed: run `npm --prefix e2e/browser ci`")
	}
	return path
}

// listen reads the driver's output until it ends.
func (p *page) listen(output io.Reader) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var line struct {
			Report   *report   `json:"report"`
			Gathered *gathered `json:"gathered"`
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

func (p *page) note(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// until waits until cond holds, and returns the report at that time.
func (p *page) until(what string, cond func() bool) report {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
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
			p.t.Fatalf("wait until %s: %v; report of the page %+v, errors %q", what, ctx.Err(), now, p.trouble())
		}
	}
}

// reports waits until a report satisfies cond.
func (p *page) reports(what string, cond func(report) bool) report {
	p.t.Helper()
	return p.until(what, func() bool { return cond(p.last) })
}

// tell sends a command to the driver and waits until it is completed.
func (p *page) tell(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.input, command); err != nil {
		p.t.Fatal(errors.Join(fmt.Errorf("tell browser to %s", command), err))
	}
	p.until(command, func() bool { return len(p.done) > 0 && p.done[len(p.done)-1] == command })
}

// gather makes the page gather relay candidates from an ICE server.
func (p *page) gather(server bed.ICEServer) gathered {
	p.t.Helper()
	text, err := json.Marshal(server)
	if err != nil {
		p.t.Fatal(err)
	}
	p.tell("gather " + string(text))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gathered
}

// trouble returns all errors of the page.
func (p *page) trouble() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.problems...)
}
