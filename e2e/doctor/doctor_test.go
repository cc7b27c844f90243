// Package doctor tests that `stunnerctl why` and `stunnerctl doctor` name common faults, each with the object, the
// field or the hop, and a remedy. A healthy installation has no finding. Each fault is real, not simulated: by rules of
// nftables in the networks between stunnerctl, dataplanes and media servers, by signals to processes, full disks and
// missing files, by objects in a folder or at an API server, and by clients. e2e/diagnose has more faults of objects
// and statuses, with an API server and without processes.
//
// TestFaults has the table of installations, each of which has a table of faults, and prints the text that names each
// fault.
//
//	doctor_test.go   the places, and how a fault is found
//	packets_test.go  firewalls, NATs and lost packets on a host without a cluster
//	media_test.go    media servers, and the network path to them
//	proxy_test.go    a proxy with another certificate, and a load balancer that ends TLS
//	pods_test.go     load balancers, NATs and pods of a cluster
//	objects_test.go  objects, in a folder and at an API server
//	clients_test.go  faults of clients
//	process_test.go  processes of a cluster
//	host_test.go     disks, files, ports, addresses and processes of a host without a cluster
//	healthy_test.go  healthy shapes
//	main_test.go     the network namespace
package doctor

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/env"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// limit is the longest time that a diagnosis with packets may take, on a machine that runs nothing else.
const limit = 20 * time.Second

// route is locked by the one running installation that has an API server. Only this installation is reachable from this
// process at its public addresses, because these are the same in each installation.
var route sync.Mutex

// start starts the product in a shape.
// With disk, its output folder is a small disk.
func start(t *testing.T, shape string, number int, kube *cluster.Cluster, disk bool, annotations ...string) *env.Env {
	t.Helper()
	s, err := env.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	if s.Is(env.APIServer) {
		route.Lock()
		t.Cleanup(route.Unlock)
	}
	e, err := env.New(t.Context(), env.Options{Shape: s, Number: number, Cluster: kube, Dir: t.TempDir(), Logf: t.Logf,
		Annotation: strings.Join(annotations, ", ")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if disk {
			unmountSmallDisk(t, e)
		}
	})
	if s.Is(env.APIServer) {
		undo, err := e.Net.ReachPublic()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := undo(); err != nil {
				t.Error(err)
			}
		})
	}
	if disk {
		mountSmallDisk(t, e)
	}
	must(t, e.Start(t.Context()))
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startCluster starts an API server.
func startCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	kube, err := cluster.Start(t.Context(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kube.Stop(); err != nil {
			t.Error(err)
		}
	})
	return kube
}

// fault is a fault and the finding that names it.
type fault struct {
	name string
	// make causes the fault, and undo repairs it. If lasts is set, the finding remains for some time after undo.
	make, undo func(*testing.T)
	lasts      bool
	// command is the command of stunnerctl that finds the fault. If it is empty, the command is why for the first
	// Gateway, with the flags of the installation.
	command []string
	// onlyPackets means that only the packets of why show the fault, and that no other object is named.
	onlyPackets bool
	// args are further arguments.
	args []string
	// severity, object, field, problem and remedy are the texts of the finding. For the last three, a part of the text
	// is enough.
	severity, object, field, problem, remedy string
	// also is another object that shows the effect of the fault.
	also string
}

func (f fault) names(got env.Finding) bool {
	return got.Severity == f.severity && got.Object == f.object && strings.Contains(got.Field, f.field) &&
		strings.Contains(got.Problem, f.problem) && got.Remedy != "" && strings.Contains(got.Remedy, f.remedy)
}

// rules are rules of nftables in a network, which undo removes.
func rules(in *netns.Space, text string) (set, undo func(*testing.T)) {
	return rulesOf(in, "fault", text)
}

// rulesOf are rules in a table.
func rulesOf(in *netns.Space, table, text string) (set, undo func(*testing.T)) {
	set = func(t *testing.T) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "fault.nft")
		if err := os.WriteFile(file, []byte("table inet "+table+" {\n"+text+"\n}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Exec("nft -f " + file); err != nil {
			t.Fatal(err)
		}
	}
	undo = func(t *testing.T) {
		t.Helper()
		if _, err := in.Exec("nft delete table inet " + table); err != nil {
			t.Error(err)
		}
	}
	return set, undo
}

// report is the output of why.
type report struct {
	Steps    []struct{ Stage, State, Fact string }
	Findings []env.Finding
}

// diagnose runs why or doctor.
func diagnose(ctx context.Context, e *env.Env, args ...string) (r report, err error) {
	o, err := e.Ctl(ctx, append(args, "-o", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(o.Text), &r)
	}
	if wrong := len(problems(r.Findings)) > 0; err == nil && wrong != (o.Code == 1) {
		err = fmt.Errorf("exit code %d with %+v", o.Code, r.Findings)
	}
	if err != nil {
		err = fmt.Errorf("stunnerctl %v: %w: %s%s", args, err, o.Text, o.Errors)
	}
	return r, err
}

func why(t *testing.T, e *env.Env, args ...string) (r report, took time.Duration) {
	t.Helper()
	begun := time.Now()
	r, err := diagnose(t.Context(), e, append([]string{"why", e.Gateways[0].ID()}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r, time.Since(begun)
}

// problems returns the findings without infos.
func problems(all []env.Finding) []env.Finding {
	return slices.DeleteFunc(slices.Clone(all), func(f env.Finding) bool { return f.Severity == "info" })
}

// awaitHealthy waits until why has no findings, because refusals and lost connections are reported for some time.
func awaitHealthy(t *testing.T, e *env.Env, args ...string) {
	t.Helper()
	err := e.Await(t.Context(), "healthy Gateway", func(ctx context.Context) error {
		r, err := diagnose(ctx, e, args...)
		if wrong := problems(r.Findings); err == nil && len(wrong) > 0 {
			err = fmt.Errorf("%v: findings %+v", args, wrong)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// find causes each fault, waits until stunnerctl names it, and ends it. The findings of some faults appear after some
// time. No run may take longer than limit.
func (p *installation) find(t *testing.T, faults []fault) {
	for _, f := range faults {
		t.Run(strings.ReplaceAll(f.name, " ", "_"), func(t *testing.T) { p.findOne(t, f) })
	}
}

func (p *installation) findOne(t *testing.T, f fault) {
	ended := f.undo == nil
	end := func() {
		if !ended {
			ended = true
			f.undo(t)
		}
	}
	if f.make != nil {
		f.make(t)
	}
	defer end() // before the context of the test ends
	if f.onlyPackets {
		if r, _ := why(t, p.Env, "--probe=false"); len(problems(r.Findings)) > 0 {
			t.Errorf("without packets why finds %+v", r.Findings)
		}
	}
	args := f.command
	if args == nil {
		args = append([]string{"why", p.Gateways[0].ID()}, p.flags...)
	}
	args = append(args, f.args...)
	var found []env.Finding
	err := p.Await(t.Context(), "finding", func(ctx context.Context) error {
		begun := time.Now()
		r, err := diagnose(ctx, p.Env, args...)
		if err != nil {
			return err
		}
		took := time.Since(begun)
		if took > limit {
			return harness.Final(fmt.Errorf("stunnerctl %v takes %s", args, took))
		}
		i := slices.IndexFunc(r.Findings, f.names)
		if i < 0 {
			return fmt.Errorf("stunnerctl %v has no finding %s %s, %s: %s in %+v", args, f.severity, f.object, f.field, f.problem, r.Findings)
		}
		found = r.Findings
		p.table.add(row{f.name, p.Shape.String(), r.Findings[i], took})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.onlyPackets {
		blamed(t, f, problems(found))
	}
	end()
	if !f.lasts && !f.onlyPackets {
		awaitHealthy(t, p.Env, append([]string{"why", p.Gateways[0].ID()}, "--probe=false")...)
	}
}

// blamed checks that no other object is named for a fault, and that the fault has at most one finding for each family.
func blamed(t *testing.T, f fault, all []env.Finding) {
	t.Helper()
	for _, more := range all {
		if more.Object != f.object && more.Object != f.also {
			t.Errorf("another object is blamed: %+v", more)
		}
	}
	if f.severity != "info" && len(all) > 2 {
		t.Errorf("%d findings about one fault: %+v", len(all), all)
	}
}

// installation is a running product, in which the faults are made.
type installation struct {
	*env.Env
	// flags are the flags with which why gets a credential.
	flags []string
	table *rows
}

// installations are the installations of TestFaults. faults returns the table of faults of a healthy installation; it
// causes none of them. Those with an API server are first, because their faults are made one after the other.
var installations = []struct {
	shape      string
	annotation string
	// disk makes the output folder a small disk.
	disk   bool
	faults func(*testing.T, *installation) []fault
}{
	{shape: "apiserver,keeps,2pods,udp+tcp+tls+dtls,ipv4,ephemeral", faults: faultsOfCluster},
	{shape: "apiserver,keeps,3pods,udp+tcp,ipv4,ephemeral", faults: faultsOfPods},
	{shape: "apiserver,nat,udp+tcp,ipv4,ephemeral", faults: faultsOfNAT},
	{shape: "folder,host,udp+tcp+tls+dtls,dual,ephemeral", faults: faultsOfPackets},
	{shape: "folder,host,udp+tcp,ipv4,ephemeral", annotation: "stunner.l7mp.io/tls-at-load-balancer: tcp", faults: faultsOfTLSAtBalancer},
	{shape: "folder,host,udp,jwt", disk: true, faults: faultsOfHost},
	{shape: "folder,host,udp+tcp+tls+dtls,ipv4,ephemeral", faults: faultsOfObjects},
}

// fewest is the least number of faults in all installations.
const fewest = 90

// TestFaults: stunnerctl names each fault with its object and a remedy, in less than limit. Before and after the fault
// there is no finding.
func TestFaults(t *testing.T) {
	t.Parallel()
	kube := sync.OnceValue(func() *cluster.Cluster { return startCluster(t) })
	table := &rows{}
	t.Cleanup(func() {
		table.print(t)
		if n := table.names(); flag.Lookup("test.run").Value.String() == "" && !t.Failed() && n < fewest {
			t.Errorf("%d faults, want at least %d", n, fewest)
		}
	})
	for i, at := range installations {
		t.Run(at.shape, func(t *testing.T) {
			t.Parallel()
			p := startInstallation(t, at.shape, at.annotation, at.disk, 1+i, kube)
			p.table = table
			faults := at.faults(t, p)
			p.find(t, faults)
			if last := len(faults) - 1; !faults[last].lasts {
				p.healthy(t)
			}
		})
	}
}

// startInstallation starts a product, and waits until it is healthy.
func startInstallation(
	t *testing.T, shape, annotation string, disk bool, number int, kube func() *cluster.Cluster,
) *installation {
	t.Helper()
	p := &installation{}
	var in *cluster.Cluster
	if strings.HasPrefix(shape, "apiserver,") {
		in = kube()
	}
	p.Env = start(t, shape, number, in, disk, annotation)
	p.flags = authFlags(t, p.Env)
	if annotation == "" {
		p.healthy(t)
	}
	return p
}

// healthy waits until doctor and why, with packets, have no findings.
func (p *installation) healthy(t *testing.T) {
	t.Helper()
	g := p.Gateways[0]
	doctor := []string{"doctor", "--probe"}
	if p.Shape.Is(env.APIServer) {
		doctor = append(doctor, "-n", g.Namespace)
	}
	awaitHealthy(t, p.Env, append(doctor, p.flags...)...)
	awaitHealthy(t, p.Env, append([]string{"why", g.ID()}, p.flags...)...)
}

// row is a fault that stunnerctl has named.
type row struct {
	name, shape string
	finding     env.Finding
	took        time.Duration
}

// rows are the named faults. The installations are tested concurrently.
type rows struct {
	mu   sync.Mutex
	list []row
}

func (r *rows) add(one row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, one)
}

// names returns the number of different faults.
func (r *rows) names() int {
	seen := map[string]bool{}
	for _, one := range r.list {
		seen[one.name] = true
	}
	return len(seen)
}

func (r *rows) print(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for i, one := range r.list {
		f := one.finding
		fmt.Fprintf(&text, "\n%3d  %s\n     %.1f s in %s\n     %s %s, %s: %s\n     remedy: %s\n",
			i+1, one.name, one.took.Seconds(), one.shape, strings.ToUpper(f.Severity), f.Object, f.Field, f.Problem, f.Remedy)
	}
	t.Logf("%d faults were named, %d different ones%s", len(r.list), r.names(), text.String())
}
