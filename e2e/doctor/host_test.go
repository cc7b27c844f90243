package doctor

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// extra is a second Gateway without routes, at an address and a port.
const extra = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: extra, namespace: %s}
spec:
  gatewayClassName: %s
  addresses: [{type: IPAddress, value: %q}]
  listeners: [{name: udp, port: %d, protocol: TURN-UDP}]
`

// second is an address of the host that a fault takes away.
const second = "203.0.113.250"

// product is a product in a folder, whose output folder is a small disk.
type product struct {
	*installation
	env.Host
	input, output string
	name          string // name of the host
}

// outputSize is the size of the disk of the output folder.
const outputSize = "4m"

// mountSmallDisk makes the output folder a small disk.
func mountSmallDisk(t *testing.T, e *env.Env) {
	t.Helper()
	_, output := e.Folders()
	must(t, os.MkdirAll(output, 0o700))
	must(t, unix.Mount("tmpfs", output, "tmpfs", 0, "size="+outputSize))
}

// unmountSmallDisk ends mountSmallDisk.
func unmountSmallDisk(t *testing.T, e *env.Env) {
	t.Helper()
	_, output := e.Folders()
	if err := unix.Unmount(output, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

func hostOf(t *testing.T, p *installation) *product {
	t.Helper()
	name, err := os.Hostname() // the dataplane has the name of the host
	must(t, err)
	h := &product{installation: p, Host: p.Env.Host(), name: name}
	h.input, h.output = p.Folders()
	return h
}

// startHost starts a product in a folder, in addition to the installations of TestFaults.
func startHost(t *testing.T, shape string, number int) *product {
	t.Helper()
	return hostOf(t, startInstallation(t, shape, "", true, number, nil))
}

func (p *product) until(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	must(t, p.Await(t.Context(), "change of the host", cond))
}

// file returns the only input file that matches a pattern.
func (p *product) file(t *testing.T, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(p.input, pattern))
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: %v, %v", pattern, all, err)
	}
	return all[0]
}

// signal sends a signal to processes.
func signal(t *testing.T, s syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		must(t, syscall.Kill(pid, s))
	}
}

// faultsOfHost are the faults of a host. Faults with lasting findings are at the end.
func faultsOfHost(t *testing.T, at *installation) []fault {
	p := hostOf(t, at)
	g := p.Gateways[0]
	gateway, auth := "Gateway "+g.ID(), "auth service "+p.name
	other := "Gateway " + g.Namespace + "/extra"
	secret := p.file(t, "*_secret_turn.yaml")
	class := regexp.MustCompile(`gatewayClassName: (\S+)`).FindStringSubmatch(read(t, p.file(t, "*_gateway_"+g.Name+".yaml")))[1]
	put := func(name, text string) (set, unset func(*testing.T)) {
		path := filepath.Join(p.input, name)
		return func(t *testing.T) { write(t, path, text) }, func(t *testing.T) { must(t, os.Remove(path)) }
	}
	replaced := func(path string, by func(string) error) (set, unset func(*testing.T)) {
		set = func(t *testing.T) {
			must(t, os.Rename(path, path+".away"))
			must(t, by(path))
		}
		return set, func(t *testing.T) {
			must(t, os.RemoveAll(path))
			must(t, os.Rename(path+".away", path))
		}
	}
	var all []fault
	add := func(f fault, set, unset func(*testing.T)) {
		f.make, f.undo, f.command = set, unset, []string{"doctor"}
		all = append(all, f)
	}
	fill, free := p.fill()

	add(fault{name: "the disk of configs and session journals is full", severity: "warning", object: "output folder", field: p.output,
		problem: "its disk is full: configs, statuses and sessions", remedy: "df -h"}, fill, free)
	more, less := put("more.yaml", "apiVersion: stunner.l7mp.io/v1\nkind: StaticService\nmetadata: {name: more, namespace: "+
		g.Namespace+"}\nspec: {prefixes: [198.51.100.77/32]}\n")
	add(fault{name: "configs cannot be written", severity: "warning", object: "output folder", field: p.output,
		problem: "cannot be written: no space left on device", remedy: "free space"},
		func(t *testing.T) { fill(t); more(t) }, func(t *testing.T) { free(t); less(t) })

	add(fault{name: "the input folder is gone", severity: "error", object: "input folder", field: p.input,
		problem: "cannot be read: no such file", remedy: "put it back"},
		func(t *testing.T) { must(t, os.Rename(p.input, p.input+".away")) },
		func(t *testing.T) { must(t, os.Rename(p.input+".away", p.input)) })
	name := filepath.Base(secret)
	set, unset := replaced(secret, func(path string) error { return os.Mkdir(path, 0o700) })
	add(fault{name: "a folder is in the place of a file", severity: "error", object: name + ":1",
		problem: "cannot be read: is a directory", remedy: "write the file anew"}, set, unset)
	set, unset = replaced(secret, func(path string) error { return os.Symlink("/none", path) })
	add(fault{name: "a symbolic link leads to no file", severity: "error", object: name + ":1",
		problem: "leads to no file", remedy: "symbolic link"}, set, unset)
	set, unset = replaced(secret, func(path string) error { return os.Symlink(name, path) })
	add(fault{name: "a file cannot be opened", severity: "error", object: name + ":1",
		problem: "too many levels", remedy: "symbolic link"}, set, unset)
	set, unset = replaced(secret, func(path string) error {
		return os.WriteFile(path, []byte(strings.Replace(read(t, path+".away"), "\ndata: {", "\ndata: {broken: '%', ", 1)), 0o600)
	})
	add(fault{name: "a Secret cannot be parsed", severity: "error", object: name + ":5", field: "data", remedy: "encode it"}, set, unset)
	set, unset = replaced(secret, func(string) error { return nil })
	add(fault{name: "the file of a Secret vanished", severity: "error", object: "GatewayConfig " + p.system(t) + "/turn", field: "spec.authRef.name",
		problem: "does not exist"}, set, unset)

	addExtra, removeExtra := put("extra.yaml", fmt.Sprintf(extra, g.Namespace, class, second, 4478))
	address := func(t *testing.T, verb string) {
		_, err := p.Net.Nodes[0].Exec("ip addr " + verb + " " + second + "/32 dev lo")
		must(t, err)
	}
	add(fault{name: "an address left the host", severity: "error", object: other, field: "status.addresses",
		problem: "had address " + second + " and has it no longer", remedy: "assign " + second},
		func(t *testing.T) {
			address(t, "add")
			addExtra(t)
			p.accepted(t, second)
			address(t, "del")
		}, removeExtra)
	set, unset = put("extra.yaml", fmt.Sprintf(extra, g.Namespace, class, second, g.Listeners[0].Port()))
	add(fault{name: "another Gateway has the port", severity: "warning", object: other, field: "spec.listeners[udp].port",
		problem: fmt.Sprintf("port %d/udp is used by listener udp of Gateway %s", g.Listeners[0].Port(), g.ID()), remedy: "port"}, set, unset)
	foreign := portOf(t, p)
	set, unset = put("extra.yaml", fmt.Sprintf(extra, g.Namespace, class, second, foreign.port()))
	add(fault{name: "a foreign program has the port", severity: "warning", object: other, field: "spec.listeners[udp].port",
		problem: fmt.Sprintf("port %d/udp is used by %s (process %d)", foreign.port(), comm(t), os.Getpid()), remedy: "port"}, set, unset)

	add(fault{name: "a dataplane hangs", severity: "error", object: gateway, field: "process", problem: "hangs", remedy: "kill -CONT"},
		func(t *testing.T) { signal(t, syscall.SIGSTOP, p.pids(t)[1]) },
		func(t *testing.T) { signal(t, syscall.SIGCONT, p.pids(t)[1]) })
	add(fault{name: "a supervisor hangs", severity: "warning", object: gateway, field: "process", problem: "supervisor", remedy: "kill -CONT"},
		func(t *testing.T) { signal(t, syscall.SIGSTOP, p.pids(t)[0]) },
		func(t *testing.T) { signal(t, syscall.SIGCONT, p.pids(t)[0]) })

	stopAuth := func(s syscall.Signal) func(*testing.T) {
		return func(t *testing.T) { must(t, p.Auth.Signal(s)) }
	}
	startAuth := func(t *testing.T, more ...string) {
		must(t, p.StartAuth(t.Context(), more...))
		p.Host = p.Env.Host()
	}
	add(fault{name: "the auth service hangs", severity: "error", object: auth, field: "--config", problem: "does not answer", remedy: "hang"},
		stopAuth(syscall.SIGSTOP), stopAuth(syscall.SIGCONT))
	add(fault{name: "the auth service is dead", severity: "error", object: auth, field: "--config", problem: "is not connected", remedy: "start it"},
		func(t *testing.T) { must(t, p.Auth.Kill()) }, func(t *testing.T) { startAuth(t) })
	keys := p.brokenKeys(t)
	add(fault{name: "the token keys cannot be fetched", severity: "error", object: auth, field: "--jwt-jwks-url",
		problem: "has not read the keys of tokens since its start", remedy: "identity provider"},
		func(t *testing.T) {
			must(t, p.Auth.Kill())
			startAuth(t, "--policy=", "--jwt-issuer=https://login.example.org", "--jwt-audience=calls", "--jwt-jwks-url="+keys)
		},
		func(t *testing.T) { must(t, p.Auth.Kill()); startAuth(t) })

	stopOperator := func(s syscall.Signal) func(*testing.T) {
		return func(t *testing.T) { must(t, p.Operator.Signal(s)) }
	}
	startOperator := func(t *testing.T) {
		must(t, p.StartOperator(t.Context()))
		p.Host = p.Env.Host()
	}
	add(fault{name: "the operator hangs", severity: "error", object: "operator", field: "discovery.url", problem: "hangs", remedy: "kill -CONT"},
		stopOperator(syscall.SIGSTOP), stopOperator(syscall.SIGCONT))
	add(fault{name: "the operator is dead", severity: "error", object: "operator", field: "discovery.url",
		problem: "no operator runs for this folder", remedy: "--output " + p.output},
		func(t *testing.T) { must(t, p.Operator.Kill()) }, startOperator)
	var secondProcess *harness.Process
	add(fault{name: "the operator is of another folder", severity: "error", object: "operator", field: "discovery.url",
		problem: "is of another folder", remedy: "--output " + p.output},
		func(t *testing.T) {
			must(t, p.Operator.Kill())
			secondProcess = p.secondOperator(t, t.TempDir(), t.TempDir(), p.Discovery)
		},
		func(t *testing.T) { must(t, secondProcess.Kill()); startOperator(t) })

	add(fault{name: "a dataplane crashes in a loop", severity: "error", object: gateway, field: "process", problem: "crashes in a loop",
		remedy: "log", lasts: true},
		func(t *testing.T) {
			for range 3 {
				p.crash(t)
			}
		}, func(*testing.T) {})
	take, giveBack := replaced(p.Program, func(string) error { return nil })
	add(fault{name: "the program is missing", severity: "warning", object: "operator", field: "--stunnerd", problem: "cannot be started",
		remedy: "put the program back", lasts: true}, take, giveBack)
	add(fault{name: "a dataplane that ended is not started anew", severity: "error", object: gateway, field: "process",
		problem: "does not run", remedy: "put the program", lasts: true},
		func(t *testing.T) { pids := p.pids(t); take(t); signal(t, syscall.SIGKILL, pids...) }, giveBack)
	add(fault{name: "tokens are refused", severity: "warning", object: "auth service", field: "Authorization",
		problem: "token_malformed", remedy: "token", lasts: true},
		func(t *testing.T) {
			for range 5 {
				p.refused(t)
			}
		}, func(*testing.T) {})
	add(fault{name: "file descriptors leave no room", severity: "error", object: "dataplane " + g.Namespace + "/" + p.name, field: "capacity",
		problem: "150 file descriptors (ulimit -n)", remedy: "ulimit -n", lasts: true},
		func(t *testing.T) { p.files(t, 150) }, func(*testing.T) {})
	return all
}

// TestSecondOperatorOfAFolder: a second operator ends with an error that names the folder, and changes nothing.
func TestSecondOperatorOfAFolder(t *testing.T) {
	t.Parallel()
	p := startHost(t, "folder,host,udp,ephemeral", 20)
	address := harness.Loopback + ":0"
	second := p.secondOperator(t, p.input, p.output, address)
	<-second.Done()
	if text := second.Output(); second.Err() == nil || !strings.Contains(text, p.output) || !strings.Contains(text, "another operator uses it") {
		t.Errorf("%v: %s", second.Err(), text)
	}
	p.healthy(t)
}

// TestLineBreaksOfSecrets: a line break at the end of the values of a Secret is ignored: no config changes, calls
// succeed, and doctor has no findings.
func TestLineBreaksOfSecrets(t *testing.T) {
	t.Parallel()
	for i, shape := range []string{"folder,host,udp,ephemeral", "folder,host,udp,static"} {
		p := startHost(t, shape, 21+i)
		g := p.Gateways[0]
		path := p.file(t, "*_secret_turn.yaml")
		text := regexp.MustCompile(`(\w+): ([A-Za-z0-9+/=]{8,})([,}])`).ReplaceAllStringFunc(read(t, path), func(entry string) string {
			key, value, _ := strings.Cut(entry[:len(entry)-1], ": ")
			plain, err := base64.StdEncoding.DecodeString(value)
			must(t, err)
			return key + ": " + base64.StdEncoding.EncodeToString(append(plain, "\r\n"...)) + entry[len(entry)-1:]
		})
		if text == read(t, path) {
			t.Fatalf("no value in %s", text)
		}
		write(t, path, text)
		p.until(t, func(context.Context) error {
			if problems := read(t, filepath.Join(p.output, "state", "operator.json")); problems == "" {
				return errors.New("no state")
			}
			return nil
		})
		must(t, p.Turncat(t.Context(), g.Listeners[0]))
		p.healthy(t)
	}
}

// fill returns functions that fill the disk of the output folder, and free it.
func (p *product) fill() (fill, free func(*testing.T)) {
	path := filepath.Join(p.output, "filling")
	fill = func(t *testing.T) {
		t.Helper()
		f, err := os.Create(path)
		must(t, err)
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return fill, func(t *testing.T) { must(t, os.Remove(path)) }
}

// accepted waits until the second Gateway has its address.
func (p *product) accepted(t *testing.T, address string) {
	t.Helper()
	p.until(t, func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(p.output, "state", "operator.json"))
		if err == nil && !strings.Contains(string(data), address) {
			err = errors.New(address + " is not published yet")
		}
		return err
	})
}

// pids returns the processes of the dataplane: its supervisor and itself.
func (p *product) pids(t *testing.T) []int {
	t.Helper()
	var worker int
	p.until(t, func(context.Context) error {
		all, err := p.Gateways[0].Dataplanes()
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("%d dataplanes", len(all))
		}
		if err == nil {
			worker, err = strconv.Atoi(all[0].ID)
		}
		if err == nil && parent(worker) == p.Operator.PID() {
			err = errors.New("only the supervisor runs")
		}
		return err
	})
	return []int{parent(worker), worker}
}

// parent returns the parent of a process, or 0.
func parent(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "PPid:"); ok {
			id, _ := strconv.Atoi(strings.TrimSpace(text))
			return id
		}
	}
	return 0
}

// crash kills the processes of the dataplane, and waits until others run.
func (p *product) crash(t *testing.T) {
	t.Helper()
	before := p.pids(t)
	signal(t, syscall.SIGKILL, before...)
	p.until(t, func(context.Context) error {
		if after := p.pids(t); after[1] == before[1] || after[0] == before[0] {
			return errors.New("not started anew")
		}
		return nil
	})
}

// files lowers the limit of file descriptors of the operator, which its next dataplane inherits. It cannot be raised
// again without CAP_SYS_RESOURCE.
func (p *product) files(t *testing.T, limit uint64) {
	t.Helper()
	must(t, unix.Prlimit(p.Operator.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}, nil))
	p.crash(t)
}

// socket is a UDP socket of this process on the host of the product.
type socket struct{ net.PacketConn }

func (s socket) port() int { return s.LocalAddr().(*net.UDPAddr).Port }

func portOf(t *testing.T, p *product) (s socket) {
	t.Helper()
	var err error
	p.OnHost(func() { s.PacketConn, err = net.ListenPacket("udp", ":0") })
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func comm(t *testing.T) string { return strings.TrimSpace(read(t, "/proc/self/comm")) }

// brokenKeys returns the URL of a JWK set that cannot be read.
func (p *product) brokenKeys(t *testing.T) string {
	t.Helper()
	var listener net.Listener
	var err error
	p.OnHost(func() { listener, err = net.Listen("tcp", harness.Loopback+":0") })
	must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "down for maintenance", http.StatusServiceUnavailable)
	}))
	must(t, server.Listener.Close())
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// secondOperator starts another operator.
func (p *product) secondOperator(t *testing.T, input, output, discovery string) (second *harness.Process) {
	t.Helper()
	var err error
	p.OnHost(func() {
		second, err = harness.Start(harness.Command{Name: "second", Path: filepath.Join(p.Dir, "operator"),
			Logs: t.TempDir(), Args: []string{
				"--provider=file", "--input", input, "--output", output, "--address", harness.Loopback,
				"--discovery-address", discovery,
				"--health-address", harness.Loopback + ":0", "--stunnerd", p.Program,
			}})
	})
	must(t, err)
	t.Cleanup(func() { must(t, second.Kill()) })
	return second
}

// refused sends a request with a broken token to the auth service.
func (p *product) refused(t *testing.T) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: p.Net.Nodes[0].Dial}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.AuthURL+"/v1/ice-servers", strings.NewReader("{}"))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer broken.broken.broken")
	code, body, err := harness.DoBy(client, req)
	if err != nil || code != http.StatusUnauthorized {
		t.Fatalf("%d %s %v", code, body, err)
	}
}

// system returns the namespace of the GatewayConfig.
func (p *product) system(t *testing.T) string {
	t.Helper()
	namespace, _, _ := strings.Cut(filepath.Base(p.file(t, "*_secret_turn.yaml")), "_")
	return namespace
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path+".draft", []byte(text), 0o600))
	must(t, os.Rename(path+".draft", path))
}
