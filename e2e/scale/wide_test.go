package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/reader"
	"github.com/stunner-gateway/stunner/e2e/internal/runner"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// The wide Gateway: 1,000 routes to 10,000 endpoints.
const (
	wideRoutes    = 1_000
	wideEndpoints = 10 // endpoints of one route
	wideTime      = 8 * time.Second
	// podCost is the maximum CPU time of a pod of the Gateway for a config, relative to the time for reading the JSON
	// of the config, which the test measures as control.
	podCost = 8
	// controls is the number of times that the control is measured.
	controls = 20
)

// A Gateway with 1,000 routes and 10,000 endpoints, of which 20 change every second, uses little CPU time in its pod:
// for each config at most podCost times the time for reading its JSON. The CPU time of the operator is printed: its
// translation has a limit, and watches and caches use more. The pod gets the last change, and a small Gateway is not
// delayed.
func TestWideGateway(t *testing.T) {
	kube := runner.NewCluster(t)
	o, w := newOperator(t, kube, "off", administrators), newUserObjects(t, kube.Admin)
	w.widen()
	w.grow(1)
	o.start()
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	wide, small := reader.Read(ctx, o.Discovery, namespaceOf(0)+"/wide"), reader.Read(ctx, o.Discovery, idOf(0))
	sees := func(r *reader.Reader, address string) time.Time {
		t.Helper()
		s, err := r.Await(
			ctx, func(s reader.State) bool { return bytes.Contains(s.Last.Data, []byte(`"`+address+`"`)) },
		)
		if err != nil {
			t.Fatalf("no config has %s: %v", address, err)
		}
		return s.Last.At
	}
	sees(wide, wideAddress(wideRoutes-1, 0))
	sees(small, address(0, 0, 0))
	o.settles()
	pod := startPod(t, o.Discovery, namespaceOf(0)+"/wide", o.Dir)

	beforePod, beforeOperator, begun := cpuOf(t, pod.PID()), o.cpu(), time.Now()
	podFrames := wide.State().Changes
	var latencies []time.Duration
	changes, moved := 0, make(chan time.Duration, 1)
	beat := time.NewTicker(pace)
	defer beat.Stop()
	for ; time.Since(begun) < wideTime; changes++ {
		<-beat.C
		if err := w.moveWide(ctx, changes%wideRoutes, changes+1); err != nil {
			t.Fatal(err)
		}
		if changes%20 == 0 {
			go func(turn int) {
				sent := time.Now()
				to, err := w.move(ctx, 0, turn)
				if err != nil {
					moved <- -1
					return
				}
				moved <- sees(small, to).Sub(sent)
			}(changes/20 + 1)
			latencies = append(latencies, <-moved)
		}
	}
	took := time.Since(begun)
	usedPod, usedOperator := cpuOf(t, pod.PID())-beforePod, o.cpu()-beforeOperator
	last := wideAddress((changes-1)%wideRoutes, changes)
	reached := sees(wide, last)
	slices.Sort(latencies)
	t.Logf("%d changes in %s, of which %d reached the pods: the pod takes %.1f %% of a core, the operator %.1f %%; a change of a small Gateway takes %s meanwhile, at most %s",
		changes, took.Round(time.Second), wide.State().Changes-podFrames, 100*float64(usedPod)/float64(took),
		100*float64(usedOperator)/float64(took),
		latencies[len(latencies)/2].Round(time.Millisecond/10), latencies[len(latencies)-1].Round(time.Millisecond/10))
	frames := time.Duration(wide.State().Changes - podFrames)
	control := readingOf(t, wide.State().Last.Data)
	t.Logf("the pod uses %s for a config, %.1f times that of reading it", usedPod/frames, float64(usedPod/frames)/float64(control))
	if usedPod > podCost*frames*control+2*tick {
		t.Errorf("the pod used %s of CPU for %d configs, want at most %d times %s for each", usedPod, frames, podCost, control)
	}
	if changes < 5*int(wideTime/time.Second) {
		t.Errorf("%d changes in %s are too few for this test", changes, took)
	}
	t.Logf(
		"the last change is in the config %s after the last write",
		reached.Sub(begun.Add(took)).Round(time.Millisecond),
	)
}

// readingOf returns the CPU time in which this process reads the JSON of a config.
func readingOf(t *testing.T, data []byte) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for range controls {
		var c config.Config
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
	}
	return (used() - before) / controls
}

// wideAddress returns the address of the first endpoint of a route. It differs in each turn.
func wideAddress(route, turn int) string {
	if turn == 0 {
		return fmt.Sprintf("10.%d.%d.0", 100+route/250, route%250)
	}
	return fmt.Sprintf("172.%d.%d.%d", 16+turn>>16, turn>>8&255, turn&255)
}

// widen creates the wide Gateway, its routes, and a Service for each.
func (w *userObjects) widen() {
	w.Helper()
	head := func(name string) string {
		return fmt.Sprintf(`"metadata":{"namespace":%q,"name":%q}`, namespaceOf(0), name)
	}
	port, err := harness.FreePort()
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.admin.Resource(
		resource("stunner.l7mp.io/v1", "dataplanes"),
	).Patch(w.Context(), "default", types.MergePatchType,
		[]byte(`{"spec":{"disableHealthCheck":true}}`), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
	w.each(0, wideRoutes, func(ctx context.Context, route int) error {
		name := fmt.Sprintf("wide-%d", route)
		var each []string
		for e := range wideEndpoints {
			each = append(each, fmt.Sprintf(`{"addresses":["10.%d.%d.%d"]}`, 100+route/250, route%250, e))
		}
		for _, object := range []string{
			fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Service",%s,"spec":{"clusterIP":"None","ports":[{"port":7000,"protocol":"UDP"}]}}`,
				head(name),
			),
			fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","addressType":"IPv4","metadata":{"namespace":%q,"name":%q,
				"labels":{"kubernetes.io/service-name":%q}},"ports":[{"port":7000,"protocol":"UDP"}],"endpoints":[%s]}`, namespaceOf(0), name, name, strings.Join(each, ",")),
			fmt.Sprintf(
				`{"apiVersion":"stunner.l7mp.io/v1","kind":"UDPRoute",%s,"spec":{"parentRefs":[{"name":"wide"}],"rules":[{"backendRefs":[{"name":%q}]}]}}`,
				head(name), name,
			),
		} {
			if err := w.create(ctx, object); err != nil {
				return err
			}
		}
		return nil
	})
	if err := w.create(w.Context(), fmt.Sprintf(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"Gateway",%s,
		"spec":{"gatewayClassName":"turn","listeners":[{"name":"udp","port":%d,"protocol":"TURN-UDP"}]}}`, head("wide"), port)); err != nil {
		w.Fatal(err)
	}
}

// moveWide changes the address of the first endpoint of a route of the wide Gateway.
func (w *userObjects) moveWide(ctx context.Context, route, turn int) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/addresses/0","value":%q}]`, wideAddress(route, turn))
	_, err := w.in("discovery.k8s.io/v1", "endpointslices", 0).Patch(
		ctx, fmt.Sprintf("wide-%d", route), types.JSONPatchType, []byte(patch), metav1.PatchOptions{},
	)
	return err
}

// startPod starts a dataplane and waits until it runs its config.
func startPod(t *testing.T, discovery, id, dir string) *harness.Process {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := harness.Root()
	must(err)
	must(harness.Build(t.Context(), root, dir, harness.Stunnerd))
	p, err := harness.Start(harness.Command{Name: "stunnerd", Path: filepath.Join(dir, "stunnerd"), Logs: dir,
		Env: []string{
			"STUNNER_ADDR=" + harness.Loopback,
		},
		Args: []string{"--watch", "--config", "http://" + discovery, "--id", id, "--state-dir", t.TempDir()}})
	must(err)
	t.Cleanup(func() { _ = p.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := p.AwaitOutput(ctx, regexp.MustCompile("config in force")); err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(p.Tail(20), "\n"))
	}
	return p
}

// cpuOf returns the CPU time that a process used.
func cpuOf(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), ") ")       // the name of the program may contain spaces
	for _, field := range strings.Fields(after)[11:13] { // the fields utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}
