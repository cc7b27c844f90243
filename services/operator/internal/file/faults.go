package file

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/host"
)

// lowSpace is the free space of a disk in bytes below which it counts as full. The files of a round are smaller.
const lowSpace = 64 << 10

// memoryOfAuth is how long an auth service that is no longer connected is reported.
const memoryOfAuth = 24 * time.Hour

// hostState contains the results of the last round that faults needs. It is never changed.
type hostState struct {
	ports     map[string]assignment
	addresses map[string]string // addresses that this host had, each with a Gateway that uses it
	processes map[types.NamespacedName]host.Process
}

// storeHost stores the state of the host for findings, and of the dataplanes for the inspection API.
func (l *loop) storeHost() {
	l.host.Store(&hostState{l.ports.chosen, maps.Clone(l.saved.Addresses), l.dataplanes.Processes()})
}

// updateAddresses remembers which public addresses of listeners this host has. An address that is forwarded to the
// host by a router never gets into l.saved.Addresses.
func (l *loop) updateAddresses() {
	local, kept := localAddresses(), map[string]string{}
	for key, c := range l.published {
		for _, listener := range c.Listeners {
			if a := listener.PublicAddress; local[a] || l.saved.Addresses[a] != "" {
				kept[a] = key.String()
			}
		}
	}
	l.saved.Addresses = kept
}

func localAddresses() map[string]bool {
	local := map[string]bool{}
	all, _ := net.InterfaceAddrs() // without them, no address counts as lost
	for _, a := range all {
		if prefix, ok := a.(*net.IPNet); ok {
			local[prefix.IP.String()] = true
		}
	}
	return local
}

// faults returns the problems of the host: with folders, disks, ports, addresses, processes, and auth services that
// were connected. Any goroutine may call it.
func (l *loop) faults(now time.Time) (all []finding.Finding) {
	if !l.serves() {
		return nil
	}
	if failed := l.failed.Load(); failed != nil {
		all = append(all, l.folderFault(*failed))
	}
	all = append(all, l.diskFaults(all)...)
	if _, err := os.Stat(l.Stunnerd); l.Stunnerd != "" && err != nil {
		all = append(all, finding.Finding{
			Severity: finding.Warning, Object: "operator", Field: "--stunnerd",
			Problem: fmt.Sprintf("the program %s cannot be started: %v; running dataplanes continue, and a new one does not start",
				l.Stunnerd, errno(err)),
			Remedy: "put the program back, or start the operator with another --stunnerd",
		})
	}
	if state := l.host.Load(); state != nil {
		all = append(all, state.addressFaults()...)
		all = append(all, state.portFaults()...)
		for _, process := range state.processes {
			all = append(all, process.Faults(now)...)
		}
	}
	all = append(all, l.auths.faults(now)...)
	slices.SortStableFunc(all, func(a, b finding.Finding) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field))
	})
	return all
}

// errno returns the error of the system call, without the path and the operation.
func errno(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// pathOf returns the path of an error, or the given path if the error has none.
func pathOf(err error, other string) string {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Path
	}
	return other
}

// errNoTarget is the error of a symbolic link to a file that does not exist.
var errNoTarget = errors.New("the symbolic link leads to no file")

// remedies are the remedies for errors of a file system; %[1]s is the path, and %[2]d the user of the operator.
var remedies = []struct {
	err  error
	text string
}{
	{unix.ENOSPC, "free space on the disk: see df -h %[1]s and df -i %[1]s"},
	{unix.EDQUOT, "free space, or raise the disk quota of user %[2]d"},
	{unix.EROFS, "mount the disk writable, and see dmesg for why it is not"},
	{fs.ErrPermission, "give user %[2]d, as which the operator runs, the right to it: ls -ld %[1]s"},
	{fs.ErrNotExist, "put it back, or start the operator with another path"},
	{unix.EISDIR, "write the file anew, or give the folder a name without .yaml"},
	{unix.ELOOP, "correct the symbolic link"},
	{errNoTarget, "correct the symbolic link, or delete it"},
	{unix.EIO, "see dmesg: the disk is broken"},
}

// remedyOf returns the remedy for an error of a path.
func remedyOf(err error, path string) string {
	for _, r := range remedies {
		if errors.Is(err, r.err) {
			text := strings.ReplaceAll(r.text, "%[1]s", path)
			return strings.ReplaceAll(text, "%[2]d", fmt.Sprint(os.Getuid()))
		}
	}
	return "see " + path + " and the log of the operator"
}

// folderFault returns the finding of a round that failed.
func (l *loop) folderFault(failed failure) finding.Finding {
	f := finding.Finding{Severity: finding.Error, Object: "operator", Field: "log", Since: failed.since,
		Problem: "changes do not take effect: " + failed.err.Error(), Remedy: "see the log of the operator"}
	path := (*fs.PathError)(nil)
	if !errors.As(failed.err, &path) {
		return f
	}
	if path.Path == l.Input || under(path.Path, l.Input) && !under(path.Path, l.Output) {
		f.Object, f.Field = "input folder", path.Path
		f.Problem = fmt.Sprintf("cannot be read: %v: no change of it takes effect, and what was in force stays", path.Err)
		f.Remedy = remedyOf(path.Err, path.Path)
		return f
	}
	f.Severity, f.Object, f.Field = finding.Warning, "output folder", filepath.Dir(path.Path)
	f.Problem = fmt.Sprintf("cannot be written: %v: changes are in force, but after a restart of the operator those before may be", path.Err)
	f.Remedy = remedyOf(path.Err, f.Field)
	return f
}

func under(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+string(filepath.Separator))
}

// diskFaults returns the folders whose disk is full, unless another finding about the folder exists.
func (l *loop) diskFaults(found []finding.Finding) (all []finding.Finding) {
	if slices.ContainsFunc(found, func(f finding.Finding) bool { return f.Object == "output folder" }) {
		return nil
	}
	var disk unix.Statfs_t
	if unix.Statfs(l.Output, &disk) != nil || disk.Bavail*uint64(disk.Bsize) >= lowSpace && (disk.Files == 0 || disk.Ffree > 0) {
		return nil
	}
	return []finding.Finding{{
		Severity: finding.Warning, Object: "output folder", Field: l.Output,
		Problem: "its disk is full: configs, statuses and sessions cannot be stored, so that the next crash or restart ends calls",
		Remedy:  remedyOf(unix.ENOSPC, l.Output),
	}}
}

// addressFaults returns the addresses that this host had and no longer has.
func (s *hostState) addressFaults() (all []finding.Finding) {
	local := localAddresses()
	for a, gateway := range s.addresses {
		if len(local) > 0 && !local[a] {
			all = append(all, finding.Finding{
				Severity: finding.Error, Object: "Gateway " + gateway, Field: "status.addresses",
				Problem: "this host had address " + a + " and has it no longer: packets of clients to it are lost",
				Remedy:  "assign " + a + " to the host again, or set spec.addresses of the Gateway or --address of the operator to an address that it has",
			})
		}
	}
	return all
}

// portFaults returns the listeners that have another port than the wanted one.
func (s *hostState) portFaults() (all []finding.Finding) {
	for key, a := range s.ports {
		words := strings.Fields(key) // claim.key
		if a.Wanted == 0 || a.Port == a.Wanted || len(words) != 3 {
			continue
		}
		f := finding.Finding{
			Severity: finding.Info, Object: "Gateway " + words[0], Field: "spec.listeners[" + words[1] + "].port",
			Problem: fmt.Sprintf("port %d/%s is below %d, which a folder does not use, so the listener has port %d",
				a.Wanted, words[2], unprivileged, a.Port),
			Remedy: fmt.Sprintf("let clients that know the address from elsewhere use port %d, or set port to one that is free", a.Port),
		}
		if a.Wanted >= unprivileged {
			f.Severity = finding.Warning
			f.Problem = fmt.Sprintf("port %d/%s %s, so the listener has port %d, which the auth service tells clients",
				a.Wanted, words[2], s.holder(words[2], a.Wanted), a.Port)
		}
		all = append(all, f)
	}
	return all
}

// holder explains why a port was not assigned.
func (s *hostState) holder(network string, port int) string {
	for key, a := range s.ports {
		if words := strings.Fields(key); len(words) == 3 && words[2] == network && a.Port == port {
			return fmt.Sprintf("is used by listener %s of Gateway %s", words[1], words[0])
		}
	}
	if program := host.Holder(network, port); program != "" {
		return "is used by " + program
	}
	return "was in use when the listener got its port, and is free now"
}

// authServices are the auth services that are or were connected, by their names.
type authServices struct {
	mu  sync.Mutex
	all map[string]authService
}

type authService struct {
	// Lost is the time at which it disconnected; zero while it is connected.
	Lost time.Time `json:"lost,omitzero"`
}

// maxAuthServices is how many auth services are remembered, because a program may connect by any name if the discovery
// server requires no token.
const maxAuthServices = 64

// reconnectTime is how long auth services may take to connect again after a restart of the operator.
const reconnectTime = 30 * time.Second

// serving records that a process starts or stops answering requests. It reports whether the process is an auth service.
// A new auth service replaces those that were lost before, because a recreated container has another name.
func (s *authServices) serving(pod string, kind inspection.Kind, serves bool, now time.Time) bool {
	if kind != inspection.Auth || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.all[pod]
	switch {
	case !known && !serves, !known && len(s.all) >= maxAuthServices:
		return false
	case !serves:
		s.all[pod] = authService{Lost: now}
		return true
	case !known:
		maps.DeleteFunc(s.all, func(_ string, a authService) bool { return !a.Lost.IsZero() })
	}
	s.all[pod] = authService{}
	return true
}

// restore adds the auth services of the previous run, which are not connected yet. They count as lost when they could
// have connected.
func (s *authServices) restore(saved map[string]authService, now time.Time) {
	s.all = map[string]authService{}
	for name, a := range saved {
		s.all[name] = authService{Lost: cmp.Or(a.Lost, now.Add(reconnectTime))}
	}
}

// current returns the auth services, without those that have been disconnected for longer than memoryOfAuth.
func (s *authServices) current(now time.Time) map[string]authService {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(_ string, a authService) bool { return !a.Lost.IsZero() && now.Sub(a.Lost) > memoryOfAuth })
	return maps.Clone(s.all)
}

// faults returns the auth services that are no longer connected.
func (s *authServices) faults(now time.Time) (all []finding.Finding) {
	for name, a := range s.current(now) {
		if !a.Lost.IsZero() && !now.Before(a.Lost) {
			all = append(all, finding.Finding{
				Severity: finding.Error, Object: "auth service " + name, Field: "--config", Since: a.Lost,
				Problem: "is not connected to the operator since " + a.Lost.Format(time.DateTime) +
					": it has ended and clients get no credentials, or it cannot reach config discovery and gives them by old configs",
				Remedy: "start it, and see its log; if it was removed on purpose, this is reported for a day",
			})
		}
	}
	return all
}

// problemOf returns a fault as an entry of problems.yaml.
func problemOf(f finding.Finding) decode.Problem {
	severity := map[finding.Severity]decode.Severity{
		finding.Error: decode.Error, finding.Warning: decode.Warning, finding.Info: decode.Info,
	}[f.Severity]
	return decode.Problem{File: f.Object, Severity: severity, Field: f.Field, Message: f.Problem + ": " + f.Remedy, Remedy: f.Remedy}
}
