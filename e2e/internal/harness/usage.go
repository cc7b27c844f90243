package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CPU returns the CPU time that the threads of the process have used.
func (p *Process) CPU() (used time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID()))
	if err != nil || len(threads) == 0 {
		return 0, fmt.Errorf("CPU time of %s: it has no threads: %w", p.Name, err)
	}
	for _, thread := range threads {
		var onCPU time.Duration // in nanoseconds, Documentation/scheduler/sched-stats.rst
		text, err := os.ReadFile(thread)
		if err == nil {
			_, err = fmt.Sscan(string(text), (*int64)(&onCPU))
		}
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s: %w", p.Name, err)
		}
		used += onCPU
	}
	return used, nil
}

// Delays are the times for which the threads of a process have waited for a processor, by thread.
type Delays map[string]time.Duration

// Delays returns the current delays of the process, or an empty map if it has ended.
func (p *Process) Delays() Delays {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID())) // the pattern is valid
	d := Delays{}
	for _, thread := range threads {
		var onCPU, waited time.Duration // in nanoseconds
		text, err := os.ReadFile(thread)
		if err == nil {
			_, err = fmt.Sscan(string(text), (*int64)(&onCPU), (*int64)(&waited))
		}
		if err == nil { // after an error, the thread has ended
			d[thread] = waited
		}
	}
	return d
}

// Since returns the longest time for which a thread has waited for a processor since earlier delays. Other processes
// have delayed this process by at most this time.
func (d Delays) Since(earlier Delays) (longest time.Duration) {
	for thread, waited := range d {
		longest = max(longest, waited-earlier[thread])
	}
	return longest
}

// Memory returns the resident memory of the process in bytes.
func (p *Process) Memory() (bytes int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err == nil {
		_, after, _ := strings.Cut(string(text), "VmRSS:")
		_, err = fmt.Sscan(after, &bytes) // VmRSS is in kB, see proc_pid_status(5)
	}
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	return bytes << 10, nil
}
