package media

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// cpu returns the CPU time of a process, including the softirqs that its system calls ran. It is exact, because the
// kernel does not measure it by ticks.
func cpu(t *testing.T, p *harness.Process) time.Duration {
	t.Helper()
	return time.Duration(schedstat(t, p, 0))
}

// switches returns how often the kernel has switched to a thread of a process.
func switches(t *testing.T, p *harness.Process) float64 {
	t.Helper()
	return float64(schedstat(t, p, 2))
}

// schedstat returns the sum over all threads of a field of /proc/PID/schedstat: 0 is the CPU time in nanoseconds, 1 the
// time of waiting for a core, 2 the number of time slices.
func schedstat(t *testing.T, p *harness.Process, field int) int64 {
	t.Helper()
	if p == nil {
		return 0
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID()))
	var total int64
	for _, f := range files {
		text, gone := os.ReadFile(f) // a thread may end meanwhile
		if fields := strings.Fields(string(text)); gone == nil && len(fields) > field {
			n, bad := strconv.ParseInt(fields[field], 10, 64)
			total, err = total+n, errors.Join(err, bad)
		}
	}
	if err != nil || total == 0 {
		t.Fatalf("read field %d of schedstat of %s: %d, %v", field, p.Name, total, err)
	}
	return total
}

// threadCPU returns the CPU time of the calling thread.
func threadCPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// machineIdle returns the time that all cores together were idle.
func machineIdle(t *testing.T) time.Duration {
	t.Helper()
	fields := strings.Fields(strings.SplitN(read(t, "/proc/stat"), "\n", 2)[0])
	const idle, iowait, tick = 4, 5, 10 * time.Millisecond
	a, err := strconv.Atoi(fields[idle])
	b, bad := strconv.Atoi(fields[iowait])
	harnesstest.NoError(t, errors.Join(err, bad))
	return time.Duration(a+b) * tick
}

// spent is the used CPU time of the machine and of the bench: this process and its ended children.
type spent struct {
	at        time.Time
	idle, own time.Duration
}

func account(t *testing.T) (s spent) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		harnesstest.NoError(t, unix.Getrusage(who, &u))
		s.own += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	s.at, s.idle = time.Now(), machineIdle(t)
	return s
}

// others returns how many cores other programs have used since an earlier measurement.
func (s spent) others(earlier spent) float64 {
	wall := s.at.Sub(earlier.at)
	return float64(time.Duration(cores)*wall-(s.idle-earlier.idle)-(s.own-earlier.own)) / float64(wall)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	harnesstest.NoError(t, err)
	return string(text)
}

// kB returns a value of a file with lines such as "VmRSS: 1234 kB", in bytes.
func kB(t *testing.T, file, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindStringSubmatch(read(t, file))
	if m == nil {
		t.Fatalf("%s has no %s", file, name)
	}
	n, err := strconv.Atoi(m[1])
	harnesstest.NoError(t, err)
	return float64(n) * 1024
}

func rss(t *testing.T, p *harness.Process) float64 {
	t.Helper()
	return kB(t, fmt.Sprintf("/proc/%d/status", p.PID()), "VmRSS")
}

func metric(t *testing.T, name string) float64 {
	t.Helper()
	v, err := harness.Metric(t.Context(), metricsURL, name)
	harnesstest.NoError(t, err)
	return v
}

// pauses returns the pauses of the garbage collector, sorted, from the log of a process with GODEBUG=gctrace=1. A cycle
// has two: before marking and after it.
func pauses(t *testing.T, p *harness.Process) (all []time.Duration) {
	t.Helper()
	for _, m := range cycle.FindAllStringSubmatch(p.Output(), -1) {
		for _, text := range m[1:] {
			pause, err := time.ParseDuration(text + "ms")
			harnesstest.NoError(t, err)
			all = append(all, pause)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has logged no cycle of the garbage collector", p.Name)
	}
	slices.Sort(all)
	return all
}

// cycle is the beginning of a line of gctrace, as in the documentation of package runtime.
var cycle = regexp.MustCompile(`(?m)^gc \d+ @\S+ \d+%: ([\d.]+)\+[\d.]+\+([\d.]+) ms clock,`)

// quantile returns a quantile of sorted durations.
func quantile(sorted []time.Duration, part float64) time.Duration {
	return sorted[int(part*float64(len(sorted)-1))]
}

// countable returns an error if this process cannot count system calls, for example in a container, where a process has
// another PID than in the kernel.
func countable() error {
	calls, err := bpf.CountSystemCalls(os.Getpid())
	if err != nil {
		return err
	}
	defer calls.Close()
	if n, err := calls.Count(); err != nil || n == 0 {
		return errors.Join(fmt.Errorf("counted %d system calls of this process", n), err)
	}
	return nil
}

// systemCalls counts the system calls of a process during f. It returns false if this machine cannot count them.
func systemCalls(t *testing.T, p *harness.Process, f func()) (float64, bool) {
	t.Helper()
	if countable() != nil {
		return 0, false
	}
	calls, err := bpf.CountSystemCalls(p.PID())
	harnesstest.NoError(t, err)
	defer calls.Close()
	f()
	n, err := calls.Count()
	harnesstest.NoError(t, err)
	return float64(n), true
}
