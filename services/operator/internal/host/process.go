package host

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The delay before a restart of a process begins with firstDelay and doubles up to lastDelay. It is reset to firstDelay
// if the process has run for stableAfter.
const (
	firstDelay  = 200 * time.Millisecond
	lastDelay   = 30 * time.Second
	stableAfter = time.Minute
)

// maxLogBytes is the size from which the log file of a process is rotated when the process starts.
const maxLogBytes = 10 << 20

// command is the command by which a process is started.
type command struct {
	Name string // name of the log file
	Path string
	Args []string
	Env  []string // variables in addition to environment()
	// Bound makes the kernel kill the process when the operator ends.
	Bound bool
}

// satisfies reports whether a process that runs command c may continue when command want is wanted: c has all arguments
// of want, and the relay address and the range of relay ports are equal. Other differences, for example a new
// executable, are no reason to restart the process, because a restart would end calls.
func (c command) satisfies(want command) bool {
	for _, arg := range want.Args {
		if !slices.Contains(c.Args, arg) {
			return false
		}
	}
	same := func(name string) bool { return variable(c.Env, name) == variable(want.Env, name) }
	return same(addressVariable) && same(relaysVariable)
}

// variable returns the value of an environment variable, or "" if it is not set.
func variable(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// phase is the phase of a process in its life cycle.
type phase string

const (
	starting phase = "starting"
	running  phase = "running"
	waiting  phase = "waiting to be restarted"
	stopping phase = "stopping"
	ended    phase = "ended"
)

// health is the state of a process.
type health struct {
	Phase    phase
	PID      int
	Since    time.Time
	Adopted  bool
	Restarts int
	LastExit string
	Ends     []time.Time // the unexpected ends, at most maxEnds
}

// String formats the state for status.txt.
func (h health) String() string {
	text := string(h.Phase)
	if h.PID != 0 {
		text += fmt.Sprintf(", pid %d since %s", h.PID, h.Since.Format(time.DateTime))
	}
	if h.Adopted {
		text += ", started by an earlier operator"
	}
	if h.Restarts > 0 {
		text += fmt.Sprintf(", restarted %d times, last because of: %s", h.Restarts, h.LastExit)
	}
	return text
}

// process keeps one program running until Stop or Leave is called. The goroutine of run starts and stops the program;
// other goroutines only read health.
type process struct {
	processSettings
	command command

	mu     sync.Mutex
	health health

	stop  chan struct{}
	leave chan struct{}
	done  chan struct{}
}

// processSettings are the settings that all processes have in common.
type processSettings struct {
	logs      string        // folder of the log files
	grace     time.Duration // time between SIGTERM and SIGKILL
	poll      time.Duration // interval at which the program file is checked
	log       *slog.Logger
	changed   func() // called after each change of health; must not block
	restarted func() // called when a program has ended unexpectedly
}

// newProcess starts a program, or adopts a running program, and restarts it when it ends.
func newProcess(c command, common processSettings, adopt *orphan) *process {
	p := &process{processSettings: common, command: c, health: health{Phase: starting},
		stop: make(chan struct{}), leave: make(chan struct{}), done: make(chan struct{})}
	go p.run(adopt)
	return p
}

// Health returns the current state.
func (p *process) Health() health {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.health
}

// Stop stops the program with SIGTERM, and after p.grace with SIGKILL. It must be called at most once, and not after
// Leave.
func (p *process) Stop() { close(p.stop) }

// Leave ends the supervision of the program. The program continues.
func (p *process) Leave() { close(p.leave) }

// Done returns a channel that is closed when the supervision has ended: after Stop when the program has ended, and
// after Leave at once, although the program continues.
func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) set(change func(*health)) {
	p.mu.Lock()
	change(&p.health)
	p.mu.Unlock()
	p.changed()
}

// run starts the program, and restarts it whenever it ends, until Stop or Leave is called. Its goroutine is locked to
// one thread: with Bound, the kernel kills the program when the thread that started it ends.
func (p *process) run(adopt *orphan) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	delay := firstDelay
	for {
		began := time.Now()
		outcome := p.runOnce(adopt)
		adopt = nil
		if outcome == "" {
			p.set(func(h *health) { h.Phase, h.PID = ended, 0 })
			return
		}
		if time.Since(began) > stableAfter {
			delay = firstDelay
		}
		p.restarted()
		p.log.Warn("dataplane ended unexpectedly, will restart",
			"dataplane", p.command.Name, "exit", outcome, "delay", delay)
		p.set(func(h *health) {
			h.Phase, h.PID, h.LastExit, h.Restarts = waiting, 0, outcome, h.Restarts+1
			h.Ends = append(slices.Clone(h.Ends[max(0, len(h.Ends)-maxEnds+1):]), time.Now())
		})
		if !p.wait(delay) {
			p.set(func(h *health) { h.Phase = ended })
			return
		}
		delay = min(2*delay, lastDelay)
	}
}

// wait waits for the duration d. It returns false if Stop or Leave is called before d has passed.
func (p *process) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stop:
	case <-p.leave:
	}
	return false
}

// runOnce runs the program once. It returns a description of how the program ended, or "" after Stop or Leave.
func (p *process) runOnce(adopt *orphan) string {
	u := newUpgrade(p.command, adopt)
	exit, handle, err := p.startOrAdopt(adopt)
	if err != nil {
		return err.Error()
	}
	look := time.NewTicker(p.poll)
	defer look.Stop()
	for stopped := false; !stopped; {
		select {
		case how := <-exit:
			return how
		case <-p.leave:
			return ""
		case <-look.C:
			if u.due() {
				p.log.Info("upgrade a dataplane in place: its program has changed", "dataplane", p.command.Name)
				_ = handle.Signal(syscall.SIGUSR2)
			}
		case <-p.stop:
			stopped = true
		}
	}
	p.set(func(h *health) { h.Phase = stopping })
	p.terminate(handle, exit)
	return ""
}

// terminate stops the program with SIGTERM, and with SIGKILL if the program does not end in time. SIGKILL is sent to
// the process group, which contains only the program and its children.
//
// Signals are sent by the handle, because the program may have ended, and its process id may belong to another process.
func (p *process) terminate(handle *os.Process, exit <-chan string) {
	_ = handle.Signal(syscall.SIGTERM) // fails if it has ended already
	timer := time.NewTimer(p.grace)
	defer timer.Stop()
	select {
	case <-exit:
		return
	case <-timer.C:
	}
	p.log.Warn("dataplane did not end in time, killing it", "dataplane", p.command.Name, "grace", p.grace)
	if handle.Signal(syscall.Signal(0)) == nil { // the id of a process group is valid while the program runs
		_ = syscall.Kill(-handle.Pid, syscall.SIGKILL)
	}
	_ = handle.Kill() // a process that was started by hand may not lead a group
	<-exit
}

// startOrAdopt starts the program, or adopts a running program. The returned channel receives a message when the
// program ends.
func (p *process) startOrAdopt(adopt *orphan) (<-chan string, *os.Process, error) {
	if adopt != nil {
		if exit, handle, err := watchEnd(*adopt, p.leave); err == nil {
			p.set(func(h *health) { h.Phase, h.PID, h.Since, h.Adopted = running, adopt.pid, adopt.since, true })
			return exit, handle, nil
		}
	}
	cmd, err := p.start()
	if err != nil {
		return nil, nil, err
	}
	exit := make(chan string, 1)
	go func() {
		err := cmd.Wait()
		exit <- cmp.Or(cmd.ProcessState.String(), fmt.Sprint(err))
	}()
	pid := cmd.Process.Pid
	p.set(func(h *health) { h.Phase, h.PID, h.Since, h.Adopted = running, pid, time.Now(), false })
	return exit, cmd.Process, nil
}

// start starts the program in a separate process group, so that a signal from the terminal, such as Ctrl-C, reaches
// only the operator.
func (p *process) start() (*exec.Cmd, error) {
	out, err := p.openLog()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(p.command.Path, p.command.Args...)
	cmd.Env = append(environment(), p.command.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.command.Bound {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start dataplane %s: %w", p.command.Name, err)
	}
	return cmd, nil
}

// openLog opens the log file of the program. The program writes to the file directly, because a pipe would break when
// the operator ends.
func (p *process) openLog() (*os.File, error) {
	path := logFile(p.logs, p.command.Name)
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, fmt.Errorf("open log of dataplane: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of dataplane: %w", err)
	}
	return f, nil
}

func logFile(folder, name string) string { return filepath.Join(folder, name+".log") }
