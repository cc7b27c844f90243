package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Timing of probes. A real kubelet probes less often. The timeout is long: an answer may take seconds on a busy
// machine, and nodes remove the UDP flows of a pod that is not ready.
const (
	probePeriod  = 250 * time.Millisecond
	probeTimeout = 10 * time.Second
	// failureThreshold is the number of failed probes after which a pod is not ready.
	failureThreshold = 3
)

// Pod is a pod whose first container runs as a process.
type Pod struct {
	kubelet *Kubelet
	spec    *corev1.Pod
	node    string
	dir     string
	created time.Time
	sandbox Sandbox

	// ending is closed by terminate. done is closed when the pod has ended.
	ending, done chan struct{}
	grace        time.Duration
	once         sync.Once

	mounts   sync.Mutex // held while volumes are written
	mu       sync.Mutex
	process  *harness.Process
	restarts int32
}

func newPod(k *Kubelet, spec *corev1.Pod, node string) *Pod {
	return &Pod{
		kubelet: k, spec: spec, node: node, dir: filepath.Join(k.Dir, spec.Namespace+"_"+spec.Name), created: time.Now(),
		ending: make(chan struct{}), done: make(chan struct{}),
	}
}

// Name returns the name of the pod.
func (p *Pod) Name() string { return p.spec.Name }

// Node returns the name of the node.
func (p *Pod) Node() string { return p.node }

// Addrs returns the addresses of the pod.
func (p *Pod) Addrs() []netip.Addr { return p.sandbox.Addrs }

// Process returns the process of the container. It is nil before the first process has started.
func (p *Pod) Process() *harness.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process
}

// Terminating reports whether the pod is being deleted.
func (p *Pod) Terminating() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

func (p *Pod) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Crash kills the worker process of a supervised program, or the program itself.
func (p *Pod) Crash() error { return p.Signal(syscall.SIGKILL) }

// Signal sends a signal to the worker process of a supervised program, or to the program itself.
func (p *Pod) Signal(s syscall.Signal) error {
	process := p.Process()
	if process == nil {
		return fmt.Errorf("%s to pod %s: it has no process", s, p.Name())
	}
	worker := process.PID()
	if children := childrenOf(worker); len(children) > 0 {
		worker = children[0]
	}
	if err := syscall.Kill(worker, s); err != nil {
		return fmt.Errorf("%s to pod %s: %w", s, p.Name(), err)
	}
	return nil
}

func childrenOf(pid int) (children []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// terminate begins the termination of the pod.
func (p *Pod) terminate(grace time.Duration) {
	p.once.Do(func() {
		p.grace = grace
		close(p.ending)
	})
}

func (p *Pod) report(err error) {
	if err != nil && !p.Terminating() {
		p.kubelet.Failed(fmt.Errorf("pod %s/%s: %w", p.spec.Namespace, p.spec.Name, err))
	}
}

// run binds the pod, runs its container until the pod ends, and removes it.
func (p *Pod) run(ctx context.Context) {
	defer close(p.done)
	if err := p.prepare(ctx); err != nil {
		if ctx.Err() == nil {
			p.report(err)
		}
		return
	}
	restart := p.spec.Spec.RestartPolicy
	for ctx.Err() == nil {
		err := p.runContainer(ctx)
		if p.Terminating() || ctx.Err() != nil {
			break
		}
		if restart == corev1.RestartPolicyNever || restart == corev1.RestartPolicyOnFailure && err == nil {
			p.complete(ctx, err)
			<-p.ending
			break
		}
		p.mu.Lock()
		p.restarts++
		p.mu.Unlock()
	}
	if ctx.Err() == nil {
		p.kubelet.remove(ctx, p.spec)
	}
}

// prepare makes everything that the container needs.
func (p *Pod) prepare(ctx context.Context) (err error) {
	if err := p.kubelet.bind(ctx, p.spec, p.node); err != nil {
		return err
	}
	if p.sandbox, err = p.kubelet.Sandbox(p.spec.Namespace, p.node, p.spec.Spec.HostNetwork); err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir, 0o711); err != nil {
		return err
	}
	// A required ConfigMap or Secret may be created later, so mount is retried.
	return harness.Until(ctx, p.mount)
}

// runContainer runs the container once, with its readiness probe. It returns how the process ended.
func (p *Pod) runContainer(ctx context.Context) error {
	container := p.spec.Spec.Containers[0]
	program := p.kubelet.Program(container.Image)
	if program == "" {
		p.report(fmt.Errorf("%w: %s", errNoProgram, container.Image))
		<-p.ending
		return errNoProgram
	}
	var process *harness.Process
	var err error
	p.sandbox.Do(func() {
		process, err = harness.Start(harness.Command{
			Name: container.Name, Path: program, Args: p.args(container), Env: p.environment(container), Dir: p.dir, Logs: p.dir,
			User: p.user(), Death: syscall.SIGKILL,
		})
	})
	if err != nil {
		p.report(err)
		<-p.ending
		return err
	}
	p.mu.Lock()
	p.process = process
	p.mu.Unlock()

	probing, stop := context.WithCancel(ctx)
	var prober sync.WaitGroup
	prober.Go(func() { p.probe(probing, container) })
	defer prober.Wait()
	defer stop()
	select {
	case <-process.Done():
	case <-ctx.Done():
		_ = process.Kill()
	case <-p.ending:
		p.end(ctx, process)
	}
	return process.Err()
}

// user returns the user of the container, or 0 if the pod does not set it. A container that runs as root has all
// capabilities of this process.
func (p *Pod) user() uint32 {
	container, pod := p.spec.Spec.Containers[0].SecurityContext, p.spec.Spec.SecurityContext
	switch {
	case container != nil && container.RunAsUser != nil:
		return uint32(*container.RunAsUser)
	case pod != nil && pod.RunAsUser != nil:
		return uint32(*pod.RunAsUser)
	}
	return 0
}

// end ends the process within the grace period.
func (p *Pod) end(ctx context.Context, process *harness.Process) {
	_ = process.Signal(syscall.SIGTERM)
	select {
	case <-process.Done():
	case <-time.After(p.grace):
		_ = process.Kill()
	case <-ctx.Done():
		_ = process.Kill()
	}
}

// probe writes the status of the pod whenever its readiness changes. A container without a probe is ready.
func (p *Pod) probe(ctx context.Context, container corev1.Container) {
	ready, failures := container.ReadinessProbe == nil, 0
	p.writeStatus(ctx, ready)
	if ready {
		return
	}
	get := container.ReadinessProbe.HTTPGet
	url := "http://" + net.JoinHostPort(p.sandbox.Addrs[0].String(), strconv.Itoa(get.Port.IntValue())) + get.Path
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for {
		code, _, err := harness.GetBy(ctx, client, url)
		if failures++; err == nil && code == http.StatusOK {
			failures = 0
		}
		if now := failures < failureThreshold && (ready || failures == 0); now != ready && ctx.Err() == nil {
			ready = now
			p.note("ready: %t; the last probe: status %d, %v", ready, code, err)
			p.writeStatus(ctx, ready)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// note appends a line to the kubelet.log of the pod.
func (p *Pod) note(format string, args ...any) {
	log, err := os.OpenFile(filepath.Join(p.dir, "kubelet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(log, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), fmt.Sprintf(format, args...))
		err = errors.Join(err, log.Close())
	}
	if err != nil {
		p.report(err)
	}
}

func (p *Pod) writeStatus(ctx context.Context, ready bool) {
	p.mu.Lock()
	restarts := p.restarts
	p.mu.Unlock()
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	p.patch(ctx, corev1.PodRunning, ready, corev1.ContainerStatus{Ready: ready, RestartCount: restarts, State: state})
}

// complete writes the status of a pod that is not restarted.
func (p *Pod) complete(ctx context.Context, err error) {
	phase, code := corev1.PodSucceeded, int32(0)
	if err != nil {
		phase, code = corev1.PodFailed, 1
	}
	state := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	p.patch(ctx, phase, false, corev1.ContainerStatus{State: state})
}

func (p *Pod) patch(ctx context.Context, phase corev1.PodPhase, ready bool, container corev1.ContainerStatus) {
	container.Name, container.Image = p.spec.Spec.Containers[0].Name, p.spec.Spec.Containers[0].Image
	status := corev1.PodStatus{
		Phase: phase, HostIP: p.sandbox.Host.String(), HostIPs: []corev1.HostIP{{IP: p.sandbox.Host.String()}},
		PodIP: p.sandbox.Addrs[0].String(), ContainerStatuses: []corev1.ContainerStatus{container},
	}
	for _, a := range p.sandbox.Addrs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	truth := corev1.ConditionFalse
	if ready {
		truth = corev1.ConditionTrue
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: kind, Status: truth, LastTransitionTime: metav1.Now(),
		})
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.spec.UID}, "status": status})
	if err == nil {
		_, err = p.kubelet.Client.CoreV1().Pods(p.spec.Namespace).Patch(
			ctx, p.spec.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	}
	if ctx.Err() == nil {
		p.report(err)
	}
}
