package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// asProgram is the environment variable that makes the test binary run as the program.
const asProgram = "STUNNER_AUTH_TEST_PROGRAM"

// process is the service in a process of its own.
type process struct {
	*exec.Cmd
	public, health string
	logs           *lockedBuffer
	read           chan struct{} // is closed when all logs are read
}

type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// launch starts a process, and waits until it is ready.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{logs: &lockedBuffer{}, read: make(chan struct{})}
	p.Cmd = exec.CommandContext(
		t.Context(), os.Args[0],
		append(args, "--address", "127.0.0.1", "--port", "0", "--health-address", "127.0.0.1:0")...,
	)
	p.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	addresses := make(chan []string, 1)
	go func() {
		defer close(p.read)
		scanner := bufio.NewScanner(io.TeeReader(stderr, p.logs))
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			if m := serving.FindStringSubmatch(scanner.Text()); m != nil {
				addresses <- m[1:]
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.read
		_ = p.Wait()
	})
	select {
	case at := <-addresses:
		p.public, p.health = at[0], at[1]
	case <-p.read:
		t.Fatalf("the service has ended: %s", p.logs)
	}
	await(t, "http://"+p.health+"/ready", http.StatusOK)
	return p
}

// end sends SIGTERM, and waits until the process has ended.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.read
	if err := p.Wait(); err != nil {
		t.Errorf("the service ends with %v: %s", err, p.logs)
	}
}

// balancer forwards connections to ready processes in turn. It probes them at intervals, as a kubelet does.
type balancer struct {
	net.Listener
	mu    sync.Mutex
	known []*process
	ready map[*process]bool
	next  int
	all   sync.WaitGroup
}

func balance(t *testing.T) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: listener, ready: map[*process]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	b.all.Go(func() {
		tick := time.NewTicker(probing)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				b.probe(ctx)
			}
		}
	})
	b.all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.all.Go(func() { b.pass(conn) })
		}
	})
	t.Cleanup(func() { cancel(); _ = listener.Close(); b.all.Wait() })
	return b
}

// probing is the interval of the probes.
const probing = 500 * time.Millisecond

func (b *balancer) probe(ctx context.Context) {
	b.mu.Lock()
	known := append([]*process(nil), b.known...)
	b.mu.Unlock()
	for _, p := range known {
		ready := false
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.health+"/ready", nil)
		if err == nil {
			r.Close = true
			if answer, err := http.DefaultTransport.RoundTrip(r); err == nil {
				ready = answer.StatusCode == http.StatusOK
				_ = answer.Body.Close()
			}
		}
		b.mu.Lock()
		b.ready[p] = ready
		b.mu.Unlock()
	}
}

func (b *balancer) add(p *process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known, b.ready[p] = append(b.known, p), true
}

func (b *balancer) pick() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.known {
		b.next++
		if p := b.known[b.next%len(b.known)]; b.ready[p] {
			return p
		}
	}
	return nil
}

// pass copies both ways until either side has closed.
func (b *balancer) pass(client net.Conn) {
	defer client.Close()
	p := b.pick()
	if p == nil {
		return
	}
	server, err := net.Dial("tcp", p.public)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
	both.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
	both.Wait()
}

// J-16: while the processes of the service are replaced one by one, no request fails: a terminating process fails its
// readiness probe and serves until it gets no more requests. It closes kept-alive connections.
func TestRolloutUnderLoad(t *testing.T) {
	file := configFile(t)
	args := []string{"-c", file, "--cluster-rate-limit", "0", "--shutdown-delay", "3"}
	b := balance(t)
	old := []*process{launch(t, args...), launch(t, args...)}
	for _, p := range old {
		b.add(p)
	}
	url := "http://" + b.Addr().String() + "/v1/ice-servers"
	ctx, stop := context.WithCancel(t.Context())
	var requests atomic.Int64
	failures := make(chan error, 1000)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			transport := &http.Transport{DisableKeepAlives: i%2 == 0, MaxIdleConnsPerHost: 1}
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				if err := askOnce(transport, url); err != nil {
					select {
					case failures <- err:
					default:
					}
				}
				requests.Add(1)
				time.Sleep(5 * time.Millisecond) // limits the rate of the requests
			}
		})
	}
	for _, p := range old {
		b.add(launch(t, args...))
		before := requests.Load()
		p.end(t)
		if n := requests.Load() - before; n == 0 {
			t.Error("no request was made while a process ended")
		}
	}
	stop()
	clients.Wait()
	close(failures)
	t.Logf("%d requests during the rollout of two processes, %d failed", requests.Load(), len(failures))
	for err := range failures {
		t.Error(err)
	}
}

// askOnce sends one request without a retry.
func askOnce(transport *http.Transport, url string) error {
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.GetBody = nil
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", answer.StatusCode, body)
	}
	return err
}

// J-16: a terminating service reports it on /ready, keeps serving, and closes connections after an answer.
func TestTerminationIsReportedByReadiness(t *testing.T) {
	p := launch(t, "-c", configFile(t), "--shutdown-delay", "3600")
	await(t, "http://"+p.public+"/ice", http.StatusOK)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "http://"+p.health+"/ready", http.StatusServiceUnavailable)
	if status, body := fetch(
		t, http.MethodGet, "http://"+p.health+"/ready", nil,
	); status != http.StatusServiceUnavailable || !strings.Contains(body, "the service ends") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := fetch(t, http.MethodGet, "http://"+p.health+"/live", nil); status != http.StatusOK {
		t.Errorf("/live: %d", status)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.public+"/ice", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || !answer.Close {
		t.Errorf("status %d, the connection is to be closed: %t", answer.StatusCode, answer.Close)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil { // the second
		t.Fatal(err)
	}
	<-p.read
	var ended *exec.ExitError
	if err := p.Wait(); !errors.As(err, &ended) || !ended.Sys().(syscall.WaitStatus).Signaled() {
		t.Errorf("after a second signal the service ends with %v", err)
	}
}
