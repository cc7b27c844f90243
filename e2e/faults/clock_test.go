package faults

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// the wall clock of the process jumps during calls. Allocations are not affected, the expiry of credentials
// follows the clock, and a jump costs at most one nonce challenge.
func TestR20ClockJumps(t *testing.T) {
	b := newBench(t)
	clock := newClock(t)
	b.file = filepath.Join(t.TempDir(), "config.json")
	b.write(b.config)
	b.startAs(bed.Command{Path: clock.program, Env: []string{clockFile + "=" + clock.file}}, b.file)
	b.inForce(b.config)
	live, held := b.calls(2), b.allocated(1)
	const hour, day = time.Hour, 24 * time.Hour
	for _, jump := range []time.Duration{hour, -hour, day, -day, 0} {
		clock.jump(jump)
		b.goOn(live)
		b.echoes(held)
		for method, attrs := range b.three() {
			if code, challenges := b.do(held, method, attrs...); code != 0 || challenges > 1 {
				t.Errorf(
					"clock at %s: %s of a live allocation: code %d after %d challenges", jump, method, code, challenges,
				)
			}
		}
		for _, c := range live {
			if err := c.Renew(); err != nil { // the library has stored the new nonce, but does not retry
				if err = c.Renew(); err != nil {
					t.Errorf("clock at %s: %v", jump, err)
				}
			}
		}
		for age, want := range map[time.Duration]stun.ErrorCode{
			-time.Minute: 0, 2 * time.Second: 0, 10 * time.Second: stun.CodeUnauthorized,
		} {
			if code := b.allocatesWith(b.ephemeral(time.Now().Add(jump - age))); code != want {
				t.Errorf(
					"clock at %s: allocate with a credential that expired %s ago: %d, want %d", jump, age, code, want,
				)
			}
		}
	}
	b.unharmed(live, silence)
}

// ephemeral returns an ephemeral credential that expires at a given time.
func (b *bench) ephemeral(end time.Time) credential.Credential {
	b.t.Helper()
	authority := credential.Authority{Realm: b.config.Auth.Realm, SharedSecret: secret}
	c, err := authority.Mint("bob", time.Hour, end.Add(-time.Hour))
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// allocatesWith returns the response code of an Allocate request with a credential, and deletes the allocation.
func (b *bench) allocatesWith(cred credential.Credential) stun.ErrorCode {
	b.t.Helper()
	c, err := ask.Dial(source(2), b.at(call.UDP), cred.Username, string(cred.Password))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	code, _ := b.do(c, stun.MethodAllocate, ask.UDP())
	if code == 0 {
		b.do(c, stun.MethodRefresh, ask.Lifetime(0))
	}
	return code
}

// clock is the wall clock of one process. That process is stunnerd, built with a modified standard library whose
// time.Now adds an offset from a file. The Go runtime reads the time without a system call, so it cannot be shifted
// from outside for one process only.
type clock struct {
	t             *testing.T
	program, file string
}

// clockFile is the environment variable with the path of the offset file: seconds as an int64 in native byte order.
const clockFile = "E2E_CLOCK"

const shift = `package time

import (
	"syscall"
	"unsafe"
)

var e2eShift = new(int64)

func init() {
	path, _ := syscall.Getenv("` + clockFile + `")
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	e2eShift = (*int64)(unsafe.Pointer(&page[0]))
}
`

func newClock(t *testing.T) *clock {
	t.Helper()
	dir := t.TempDir()
	c := &clock{t, filepath.Join(dir, "stunnerd"), filepath.Join(dir, "clock")}
	c.jump(0)
	root := bedtest.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // compiles the standard library if it is not cached
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-overlay", c.overlay(dir), "-o", c.program, ".")
	build.Dir = filepath.Join(root, bed.Stunnerd)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with another clock: %v\n%s", err, out)
	}
	return c
}

// overlay writes the modified files of package time and a build overlay.
func (c *clock) overlay(dir string) string {
	c.t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		c.t.Fatal(err)
	}
	library := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	source, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		c.t.Fatal(err)
	}
	const now = "sec, nsec, mono := runtimeNow()\n"
	before, after, found := strings.Cut(string(source), now)
	if !found || strings.Contains(after, now) {
		c.t.Fatalf("time.Now does not contain %q once: adapt this test to the new code of time.Now", now)
	}
	replace := map[string]string{}
	for name, content := range map[string]string{
		"time.go": before + now + "\tsec += *e2eShift\n" + after, "shift.go": shift,
	} {
		replace[filepath.Join(library, name)] = c.put(dir, name, []byte(content))
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.put(dir, "overlay.json", list)
}

func (c *clock) put(dir, name string, content []byte) string {
	c.t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// jump sets the offset of the clock.
func (c *clock) jump(by time.Duration) {
	c.t.Helper()
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(by/time.Second)), 0)
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		c.t.Fatal(fmt.Errorf("set clock: %w", err))
	}
}
