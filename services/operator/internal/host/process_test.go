package host

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is also the supervised program. This variable selects its role.
const roleVariable = "DATAPLANE_TEST_ROLE"

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// play runs the test binary in a role of a dataplane.
func play(role string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("begins as", role, os.Getenv(addressVariable))
	switch role {
	case "crash":
		fmt.Println("level=ERROR msg=\"cannot go on\"")
		return 3
	case "supervisor":
		// The child has the same command and executes the same program as the supervisor. After an upgrade the child
		// executes the program that is at the path then.
		upgrades := make(chan os.Signal, 1)
		signal.Notify(upgrades, syscall.SIGUSR2)
		child := exec.Command("/proc/self/exe", os.Args[1:]...)
		child.Env = append(os.Environ(), roleVariable+"=serve", supervisorVariable+"="+strconv.Itoa(os.Getpid()))
		child.Stdout, child.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		runtime.LockOSThread()
		if err := child.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
		for {
			select {
			case <-upgrades:
				fmt.Println("upgraded")
				continue
			case <-signals:
			}
			fmt.Println("ends")
			return 0
		}
	case "stubborn":
		for range signals {
		}
	case "operator":
		// This role starts a process and exits, so that the kernel kills the process if it is bound.
		c, changed := player("serve", os.Getenv(stateVariable)), make(chan struct{}, 1)
		c.Bound = os.Getenv("STUNNER_TEST_BOUND") != ""
		p := newProcess(c, processSettings{logs: os.Getenv("STUNNER_TEST_LOGS"), grace: time.Second, poll: time.Second,
			log:     slog.New(slog.DiscardHandler),
			changed: func() { touch(changed) }, restarted: func() {}}, nil)
		for p.Health().PID == 0 {
			<-changed
		}
		_ = os.WriteFile(
			filepath.Join(os.Getenv("STUNNER_TEST_LOGS"), "child"), []byte(strconv.Itoa(p.Health().PID)), 0o600,
		)
		<-signals
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	<-signals
	fmt.Println("ends")
	return 0
}

// player returns a command that runs this binary in a role.
func player(role, state string) command {
	program, _ := os.Executable()
	return command{Name: filepath.Base(state), Path: program, Args: []string{"-w", "-i", filepath.Base(state)},
		Env: []string{roleVariable + "=" + role, stateVariable + "=" + state, addressVariable + "=127.0.0.1"}}
}

// supervisor starts and watches the processes of a test.
type supervisor struct {
	t        *testing.T
	common   processSettings
	restarts atomic.Int32
	changes  chan struct{}
}

func newSupervisor(t *testing.T) *supervisor {
	k := &supervisor{t: t, changes: make(chan struct{}, 1)}
	k.common = processSettings{logs: t.TempDir(), grace: 300 * time.Millisecond, poll: 10 * time.Millisecond,
		log:     slog.New(slog.DiscardHandler),
		changed: func() { touch(k.changes) }, restarted: func() { k.restarts.Add(1) }}
	return k
}

func (k *supervisor) start(c command, adopt *orphan) *process {
	return newProcess(c, k.common, adopt)
}

// await waits for a state of a process.
func (k *supervisor) await(p *process, what string, is func(health) bool) health {
	k.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		if h := p.Health(); is(h) {
			return h
		}
		select {
		case <-k.changes:
		case <-deadline:
			k.t.Fatalf("process is not %s: %s", what, p.Health())
		}
	}
}

func (k *supervisor) stop(p *process) {
	k.t.Helper()
	p.Stop()
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		k.t.Fatal("process does not stop")
	}
}

// awaitLog polls the log of a process.
func (k *supervisor) awaitLog(name, text string) {
	k.t.Helper()
	until(k.t, name+" writes "+text, func() bool {
		data, _ := os.ReadFile(logFile(k.common.logs, name))
		return strings.Contains(string(data), text)
	})
}

// touch notifies without blocking.
func touch(knock chan<- struct{}) {
	select {
	case knock <- struct{}{}:
	default:
	}
}

// until polls a condition in another process.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// killOrphans ends the processes that a failed test has left.
func killOrphans(t *testing.T, program, below string) {
	found, err := orphans(program, below)
	if err != nil {
		t.Error(err)
	}
	for _, o := range found {
		_ = syscall.Kill(o.pid, syscall.SIGKILL)
	}
}

func alive(pid int) bool {
	_, ok := inspect(pid)
	return ok
}

func isRunning(h health) bool { return h.Phase == running }

func TestProcessEndsOnSIGTERM(t *testing.T) {
	k := newSupervisor(t)
	p := k.start(player("serve", "/n_g"), nil)
	h := k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins as serve 127.0.0.1")
	k.stop(p)
	k.awaitLog("n_g", "ends")
	if got := p.Health(); got.Phase != ended || got.Restarts != 0 || alive(h.PID) {
		t.Errorf("after the stop: %s", got)
	}
}

func TestProcessThatDoesNotEndIsKilled(t *testing.T) {
	k := newSupervisor(t)
	p := k.start(player("stubborn", "/n_g"), nil)
	h := k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins")
	k.stop(p)
	if alive(h.PID) {
		t.Errorf("process %d lives", h.PID)
	}
}

func TestProcessThatCrashesIsStartedAgain(t *testing.T) {
	k := newSupervisor(t)
	p := k.start(player("crash", "/n_g"), nil)
	h := k.await(p, "restarted twice", func(h health) bool { return h.Restarts >= 2 })
	k.stop(p)
	if h.LastExit != "exit status 3" || k.restarts.Load() < 2 {
		t.Errorf("last exit %q, %d restarts counted", h.LastExit, k.restarts.Load())
	}
	k.awaitLog("n_g", "cannot go on")
}

func TestProcessThatCannotStartSaysWhy(t *testing.T) {
	k := newSupervisor(t)
	p := k.start(command{Name: "n_g", Path: filepath.Join(t.TempDir(), "absent")}, nil)
	h := k.await(p, "waiting", func(h health) bool { return h.Restarts >= 1 })
	k.stop(p)
	if !strings.Contains(h.LastExit, "start dataplane n_g") {
		t.Errorf("last exit %q", h.LastExit)
	}
}

func TestProcessIsLeftAndTakenOver(t *testing.T) {
	k := newSupervisor(t)
	below := t.TempDir()
	c := player("serve", filepath.Join(below, "n_g"))
	t.Cleanup(func() { killOrphans(t, c.Path, below) })
	p := k.start(c, nil)
	h := k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins")
	p.Leave()
	<-p.Done()

	found, err := orphans(c.Path, below)
	if err != nil {
		t.Fatal(err)
	}
	o, ok := found["n_g"]
	if !ok || len(found) != 1 || o.pid != h.PID || !o.command.satisfies(c) || time.Since(o.since) > time.Minute {
		t.Fatalf("found %+v, want pid %d", found, h.PID)
	}
	moved := c
	moved.Args = append([]string{"-c", "http://127.0.0.1:1"}, c.Args...)
	if o.command.satisfies(moved) {
		t.Error("a process that listens elsewhere is taken for the wanted one")
	}

	next := k.start(o.command, &o)
	if h := k.await(next, "running", isRunning); h.PID != o.pid || !h.Adopted {
		t.Errorf("took over %s, want pid %d", h, o.pid)
	}
	if err := syscall.Kill(o.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if h := k.await(
		next, "restarted", func(h health) bool { return h.Restarts == 1 && h.PID != 0 },
	); h.Adopted || h.PID == o.pid {
		t.Errorf("restarted as %s", h)
	}
	k.stop(next)
}

func TestProcessThatWasTakenOverEnds(t *testing.T) {
	k := newSupervisor(t)
	below := t.TempDir()
	c := player("stubborn", filepath.Join(below, "n_g"))
	t.Cleanup(func() { killOrphans(t, c.Path, below) })
	p := k.start(c, nil)
	k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins")
	p.Leave()
	<-p.Done()
	found, err := orphans(c.Path, below)
	if err != nil || len(found) != 1 {
		t.Fatalf("found %v, %v", found, err)
	}
	o := found["n_g"]
	next := k.start(o.command, &o)
	k.await(next, "running", isRunning)
	k.stop(next)
	if alive(o.pid) {
		t.Error("process lives after the stop")
	}
}

// No signal is sent to a process that has got the process id of a program that ended.
func TestTerminateSparesAnotherProcessWithTheID(t *testing.T) {
	k := newSupervisor(t)
	p := k.start(player("serve", "/n_g"), nil)
	h := k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins")

	over := exec.Command("/bin/true")
	if err := over.Run(); err != nil {
		t.Fatal(err)
	}
	over.Process.Pid = h.PID
	exit := make(chan string)
	time.AfterFunc(2*k.common.grace, func() { exit <- "ended" })
	p.terminate(over.Process, exit)
	if got := p.Health(); got.PID != h.PID || !alive(h.PID) {
		t.Errorf("the other process has got a signal: %s", got)
	}
	k.stop(p)
}

func TestProcessSurvivesTheOperatorUnlessItIsBound(t *testing.T) {
	for _, bound := range []bool{false, true} {
		t.Run(fmt.Sprintf("bound %v", bound), func(t *testing.T) {
			k := newSupervisor(t)
			c := player("operator", filepath.Join(t.TempDir(), "n_g"))
			c.Name = "operator"
			c.Env = append(c.Env, "STUNNER_TEST_LOGS="+k.common.logs)
			if bound {
				c.Env = append(c.Env, "STUNNER_TEST_BOUND=yes")
			}
			operator := k.start(c, nil)
			k.await(operator, "running", isRunning)
			var pid int
			until(t, "the child runs", func() bool {
				data, err := os.ReadFile(filepath.Join(k.common.logs, "child"))
				pid, _ = strconv.Atoi(string(data))
				return err == nil && pid != 0
			})
			k.stop(operator)
			if bound {
				until(t, "the child ends", func() bool { return !alive(pid) })
				return
			}
			k.awaitLog("n_g", "begins as serve")
			if !alive(pid) {
				t.Fatal("the child ended together with the operator")
			}
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			until(t, "the child ends", func() bool { return !alive(pid) })
		})
	}
}

func TestLogThatIsLongIsSetAside(t *testing.T) {
	k := newSupervisor(t)
	path := logFile(k.common.logs, "n_g")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(maxLogBytes + 1); err != nil {
		t.Fatal(err)
	}
	f.Close()
	p := k.start(player("serve", "/n_g"), nil)
	k.await(p, "running", isRunning)
	k.stop(p)
	if info, err := os.Stat(path); err != nil || info.Size() > 1<<10 {
		t.Errorf("the log was not begun anew: %v %v", info, err)
	}
	if _, err := os.Stat(path + ".old"); err != nil {
		t.Errorf("the long log is gone: %v", err)
	}
}
