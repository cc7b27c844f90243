package faults

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// the wall clock of the process jumps during calls. Allocations are not affected, the expiry of credentials
// follows the clock, and a jump costs at most one nonce challenge.
func TestClockJumpsEndNoAllocation(t *testing.T) {
	t.Parallel()
	program := buildWithClock(t)
	offset, err := os.Create(filepath.Join(t.TempDir(), "offset"))
	if err != nil {
		t.Fatal(err)
	}
	defer offset.Close()
	set := func(jump time.Duration) {
		if _, err := offset.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(jump/time.Second)), 0); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	d := newDataplane(t)
	d.serve(harness.Command{Path: program, Env: []string{offsetFile + "=" + offset.Name()}})
	live, held := d.calls(), d.allocated(1)
	const hour, day = time.Hour, 24 * time.Hour
	for _, jump := range []time.Duration{hour, -hour, day, -day, 0} {
		set(jump)
		d.awaitEchoes(live...)
		d.echo(held)
		for _, r := range d.ofAllocation() {
			if code, challenges := d.do(held, r.method, r.attrs...); code != 0 || challenges > 1 {
				t.Errorf("clock at %s: %s: code %d after %d challenges", jump, r.method, code, challenges)
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
			if code := d.allocatesUntil(time.Now().Add(jump - age)); code != want {
				t.Errorf("clock at %s: credential that expired %s ago: %d, want %d", jump, age, code, want)
			}
		}
	}
	d.undisturbed(live)
}

// allocatesUntil returns the response code of an Allocate request with a credential that expires at a given time.
func (d *dataplane) allocatesUntil(expiry time.Time) stun.ErrorCode {
	d.t.Helper()
	authority := credential.Authority{Realm: d.config.Auth.Realm, SharedSecret: secret}
	minted, err := authority.Mint("bob", time.Hour, expiry.Add(-time.Hour))
	if err != nil {
		d.t.Fatal(err)
	}
	c := d.client(2)
	c.Username, c.Password = minted.Username, string(minted.Password)
	code, _ := d.do(c, stun.MethodAllocate, ask.UDP())
	return code
}

// offsetFile is the environment variable with the path of a file that has the offset of the clock: seconds as an int64
// in native byte order.
const offsetFile = "E2E_CLOCK"

const clockWithOffset = `package time

import (
	"syscall"
	"unsafe"
)

var e2eOffset = new(int64)

func init() {
	path, _ := syscall.Getenv("` + offsetFile + `")
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	e2eOffset = (*int64)(unsafe.Pointer(&page[0]))
}
`

// buildWithClock builds stunnerd with a modified standard library, whose time.Now adds an offset. The Go runtime reads
// the time without a system call, so it cannot be shifted from outside for one process only. The program stays in bin,
// so that the next run does not link it again.
func buildWithClock(t *testing.T) (program string) {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	code, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "sec, nsec, mono := runtimeNow()\n"
	before, after, found := strings.Cut(string(code), now)
	if !found || strings.Contains(after, now) {
		t.Fatalf("time.Now does not contain %q once: adapt this test to the new code of time.Now", now)
	}
	dir := t.TempDir()
	replaced := map[string]string{}
	for name, content := range map[string]string{
		"time.go": before + now + "\tsec += *e2eOffset\n" + after, "offset.go": clockWithOffset,
	} {
		replaced[filepath.Join(library, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	overlay := filepath.Join(dir, "overlay.json")
	if err = errors.Join(err, os.WriteFile(overlay, list, 0o600)); err != nil {
		t.Fatal(err)
	}
	root := harnesstest.Root(t)
	program = filepath.Join(root, "bin/e2e/stunnerd-with-clock")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // compiles the standard library if it is not cached
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", program, ".")
	build.Dir = filepath.Join(root, harness.Stunnerd)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with another clock: %v\n%s", err, out)
	}
	return program
}
