package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// A process crashes in a loop if it has ended unexpectedly loopEnds times within loopTime.
const (
	loopEnds = 3
	loopTime = 10 * time.Minute
	// maxEnds is the maximum number of unexpected ends of a process that are remembered.
	maxEnds = 10
)

// Process is the process of a Gateway. Its methods may be called concurrently with the methods of Dataplanes.
type Process struct {
	process *process
	object  string
	log     string
}

// Processes returns the processes that run or will be restarted. A process that has ended unexpectedly is restarted,
// and continues its sessions.
func (d *Dataplanes) Processes() map[types.NamespacedName]Process {
	all := map[types.NamespacedName]Process{}
	for key, p := range d.running {
		if p.Health().Phase != ended {
			all[key] = Process{process: p.process, object: "Gateway " + key.String(), log: d.LogFile(key)}
		}
	}
	return all
}

// Runs reports whether the process runs now.
func (p Process) Runs() bool { return p.process.Health().PID != 0 }

// Faults returns why the process does not serve clients, or will not serve them.
func (p Process) Faults(now time.Time) []finding.Finding {
	h := p.process.Health()
	f := finding.Finding{
		Severity: finding.Error, Object: p.object, Field: "process",
		Remedy: "see the end of its log " + p.log + ": the operator starts it again, with a delay that grows to " + lastDelay.String(),
	}
	recent := 0
	for _, end := range h.Ends {
		if now.Sub(end) < loopTime {
			recent++
		}
	}
	crashed := true
	switch stopped := stopped(h.PID); {
	case h.Phase == waiting:
		f.Problem = "the dataplane does not run: " + h.LastExit
		if _, err := os.Stat(p.process.command.Path); err != nil {
			f.Remedy = fmt.Sprintf("put the program %s back, or start the operator with another --stunnerd", p.process.command.Path)
		}
	case recent >= loopEnds:
		f.Problem = fmt.Sprintf("the dataplane crashes in a loop: it has ended %d times in %s, the last time with %s",
			recent, now.Sub(h.Ends[len(h.Ends)-recent]).Round(time.Second), h.LastExit)
	case len(stopped) > 0:
		crashed = false
		f.Problem = "the dataplane hangs: a signal such as SIGSTOP or a debugger has stopped process " + joined(stopped)
		f.Remedy = "kill -CONT " + joined(stopped)
		if slices.Equal(stopped, []int{h.PID}) && len(children(h.PID)) > 0 {
			f.Severity = finding.Warning
			f.Problem = fmt.Sprintf("the supervisor of the dataplane, process %d, is stopped: calls continue, and a crash is not repaired", h.PID)
		}
	default:
		return nil
	}
	if last := lastError(p.log); crashed && last != "" {
		f.Problem += "; its last error: " + last
	}
	return []finding.Finding{f}
}

func joined(pids []int) string {
	var texts []string
	for _, pid := range pids {
		texts = append(texts, strconv.Itoa(pid))
	}
	return strings.Join(texts, " ")
}

// stopped returns which of a process and its children a signal or a debugger has stopped.
func stopped(pid int) (all []int) {
	if pid == 0 {
		return nil
	}
	for _, pid := range append([]int{pid}, children(pid)...) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		// The state follows the name of the process, which is in parentheses and may contain any character (proc(5)).
		if at := bytes.LastIndexByte(stat, ')'); err == nil && at > 0 && len(stat) > at+2 && strings.ContainsRune("Tt", rune(stat[at+2])) {
			all = append(all, pid)
		}
	}
	return all
}

func children(pid int) (all []int) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	tasks, _ := os.ReadDir(dir) // the process may have ended
	for _, task := range tasks {
		list, _ := os.ReadFile(filepath.Join(dir, task.Name(), "children"))
		for _, word := range strings.Fields(string(list)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// maxTail is how many bytes at the end of a log file are searched for an error.
const maxTail = 4 << 10

// lastError returns the message of the last error or panic in a log, or "".
func lastError(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	data := make([]byte, maxTail)
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	n, _ := file.ReadAt(data, max(0, info.Size()-maxTail)) // io.EOF at the end
	lines := strings.Split(string(data[:n]), "\n")
	for _, line := range slices.Backward(lines) {
		_, text, logged := strings.Cut(line, "level=ERROR ")
		if logged || strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			if !logged {
				text = line
			}
			return text
		}
	}
	return ""
}

// Holder describes the program that has bound a port of this host, such as "nginx (process 12)". It returns "" if no
// program has bound the port. It does not name a program of another user.
func Holder(network string, port int) string {
	inodes := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		data, _ := os.ReadFile("/proc/net/" + table) // a kernel without IPv6 has no second table
		for line := range strings.Lines(string(data)) {
			// proc(5): sl, local_address, rem_address, st, …, inode. The state of a listening TCP socket is 0A.
			fields := strings.Fields(line)
			if len(fields) < 10 || network == "tcp" && fields[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			if bound, err := strconv.ParseUint(hex, 16, 16); err == nil && int(bound) == port {
				inodes["socket:["+fields[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is valid
	for _, path := range descriptors {
		link, err := os.Readlink(path)
		if errors.Is(err, os.ErrNotExist) || !inodes[link] {
			continue
		}
		process := filepath.Dir(filepath.Dir(path))
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), filepath.Base(process))
	}
	return "a program of another user"
}
