//go:build node

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// TestCrash ends the dataplane in one of two pods. Its UDP calls continue: the next process restores their sessions,
// and the other pod forwards the datagrams that arrive there while the pod is not ready.
func TestCrash(t *testing.T) {
	system := testNamespace{t, home}
	system.prepare()
	system.follow(nil, block{manual, "kubectl apply --server-side"})
	for _, end := range []struct {
		name string
		of   func(*testing.T, daemon)
		// restarted is set if kubelet restarts the container.
		restarted bool
	}{
		{"process", func(t *testing.T, d daemon) { send(t, syscall.SIGKILL, d.child) }, false},
		{"container", func(t *testing.T, d daemon) { send(t, syscall.SIGKILL, d.supervisor) }, true},
		{"memory", exhaustMemory, false},
		{"liveness", func(t *testing.T, d daemon) { send(t, syscall.SIGSTOP, d.child) }, true},
	} {
		t.Run(end.name, func(t *testing.T) {
			s := newSite(t, "crash-"+end.name)
			calls := s.callsThroughOneOfTwoPods()
			victim := s.podOf(calls[0])
			before := daemonOf(t, victim)
			end.of(t, before)
			if end.restarted {
				s.until("the container is restarted", func(ctx context.Context) error {
					p, err := cluster.Client.CoreV1().Pods(s.namespace).Get(ctx, victim.Name, metav1.GetOptions{})
					if err == nil && p.Status.ContainerStatuses[0].RestartCount == 0 {
						err = errors.New("it is not")
					}
					return err
				})
			}
			s.until("another process runs", func(context.Context) error {
				switch now, err := findDaemon(victim); {
				case err != nil:
					return err
				case now.child == before.child:
					return errors.New("the process is the same")
				}
				return nil
			})
			s.goOn(end.name, calls...)
			for _, p := range s.pods(dataplanes) {
				status := s.status(p)
				t.Logf("pod %s: %d restarts of the container, journal %+v, forwarding %+v",
					p.Name, p.Status.ContainerStatuses[0].RestartCount, status.Journal, status.Forwarding)
			}
			var longest time.Duration
			for _, c := range calls {
				stats := c.End(100 * time.Millisecond)
				t.Logf("call from %s: %s", c.Relay(), stats)
				longest = max(longest, stats.LongestGap)
			}
			t.Logf("%s: the longest silence of %d calls is %s", end.name, len(calls), longest.Round(time.Millisecond))
		})
	}
}

// callsThroughOneOfTwoPods creates a Gateway with two dataplane pods that forward to each other, and makes eight calls
// over UDP. All are relayed by the same pod, because the Service has the session affinity ClientIP. Its
// externalTrafficPolicy is Local: with Cluster, kube-proxy gives a client a random source port, and another port after
// the pod was not ready, so that no pod finds its session.
func (s site) callsThroughOneOfTwoPods() (calls []*call.Call) {
	s.Helper()
	s.kubectl("", "patch", "dataplane", s.namespace, "--type=merge", "--patch", `{"spec":{"replicas":2}}`)
	s.open("stunner.l7mp.io/external-traffic-policy: local", udpListener)
	s.kubectl("", "rollout", "status", "deployment/front-door", "--timeout="+timeout.String())
	s.forwarding(2)
	at, peer := listenerAddress{call.UDP, netip.AddrPortFrom(s.address("front-door"), 3478)}, s.echo()
	for range 8 {
		o := s.options(at, peer)
		o.Interval = 20 * time.Millisecond
		calls = append(calls, s.dialWith(o))
	}
	return calls
}

// podOf returns the pod that relays a call.
func (s site) podOf(c *call.Call) (pod corev1.Pod) {
	s.Helper()
	relay := netip.MustParseAddrPort(c.Relay().String()).Addr().String()
	for _, p := range s.pods(dataplanes) {
		if p.Status.PodIP == relay {
			return p
		}
	}
	s.Fatalf("no pod has the address %s", relay)
	return pod
}

func (s site) status(p corev1.Pod) (status inspection.Status) {
	s.Helper()
	if err := json.Unmarshal([]byte(page(s.testNamespace, p.Name, 8086, "status")), &status); err != nil {
		s.Fatal(err)
	}
	return status
}

// daemon contains the ids of the processes of a dataplane pod, as seen in the PID namespace of the test.
type daemon struct {
	pod               corev1.Pod
	supervisor, child int
}

func daemonOf(t *testing.T, p corev1.Pod) daemon {
	t.Helper()
	d, err := findDaemon(p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// findDaemon finds the processes of a dataplane pod by their environment.
func findDaemon(p corev1.Pod) (daemon, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	parents := map[int]int{}
	for _, dir := range all {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(env, []byte("STUNNER_POD="+p.Name+"\x00")) {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		var pid, parent int
		var name, state string
		if _, err := fmt.Sscan(string(stat), &pid, &name, &state, &parent); err == nil && name == "(stunnerd)" {
			parents[pid] = parent
		}
	}
	for child, parent := range parents {
		if _, ok := parents[parent]; ok {
			return daemon{p, parent, child}, nil
		}
	}
	return daemon{}, errors.Join(err, fmt.Errorf("pod %s has no supervised process: %v", p.Name, parents))
}

func send(t *testing.T, signal syscall.Signal, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

// exhaustMemory lowers the memory limit of the container to its usage, and sends requests to the dataplane until the
// kernel kills it because it is out of memory. Afterwards it restores the previous limit. With cgroup version 1, the
// kernel kills only one process; with version 2, kubelet makes it kill all processes of the container.
func exhaustMemory(t *testing.T, d daemon) {
	group, limit, usage := memoryGroup(t, d.child)
	limit, usage = filepath.Join(group, limit), filepath.Join(group, usage)
	previous, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	// The group no longer exists if the container has ended.
	restore := sync.OnceFunc(func() { _ = os.WriteFile(limit, previous, 0) })
	defer restore()
	gone := func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.child))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}
	client := &http.Client{Timeout: time.Second}
	for begun := time.Now(); !gone() && time.Since(begun) < timeout; {
		used, err := os.ReadFile(usage)
		if err == nil {
			n, _ := strconv.Atoi(strings.TrimSpace(string(used)))
			// The kernel rejects a limit that it cannot reach by reclaiming memory.
			for less := n; less > 0 && !gone(); less -= 64 << 10 {
				if os.WriteFile(limit, []byte(strconv.Itoa(less)), 0) != nil {
					break
				}
			}
		}
		var requests sync.WaitGroup
		for range 50 {
			requests.Go(func() {
				if r, err := client.Get("http://" + d.pod.Status.PodIP + ":8086/status"); err == nil {
					r.Body.Close()
				}
			})
		}
		requests.Go(func() {
			for range 500 { // the next process needs the memory
				if gone() {
					restore()
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
		requests.Wait()
	}
	if !gone() {
		t.Fatal("the kernel did not kill the process")
	}
	events, _ := os.ReadFile(filepath.Join(group, "memory.oom_control"))
	t.Logf("memory limit lowered; %s", strings.Join(strings.Fields(string(events)), " "))
}

// memoryGroup returns the folder of the memory cgroup of a process, and the names of its files with limit and usage.
func memoryGroup(t *testing.T, pid int) (group, limit, usage string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		_, line, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch controllers, path, _ := strings.Cut(line, ":"); {
		case controllers == "memory":
			return filepath.Join("/sys/fs/cgroup/memory", path), "memory.limit_in_bytes", "memory.usage_in_bytes"
		case controllers == "" && group == "":
			group = filepath.Join("/sys/fs/cgroup", path)
		}
	}
	return group, "memory.max", "memory.current"
}
