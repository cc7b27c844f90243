package discovery

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
)

// Limits bound the load that clients can put on a Server.
type Limits struct {
	// Streams is the maximum number of open streams; 0 means 5,000.
	Streams int
	// PodStreams is the maximum number of streams of one pod; 0 means 4. A dataplane needs one stream, and a second
	// stream while it reconnects.
	PodStreams int
	// Unreported is the maximum number of streams of the pods of a namespace that are Grant.Unreported; 0 means 64. The
	// node of a pod reports its address about a second after the start, and the next review of a stream, see
	// Server.Reconsider, observes that. Without the limit, any user who may create pods could open all streams with the
	// tokens of pods that never run.
	Unreported int
	// Rate is the maximum number of requests a second of one source address (a /64 in IPv6); 0 means 10.
	Rate int
	// Burst is the maximum number of requests at once of one source address; 0 means 20.
	Burst int
	// Loopback makes Rate and Burst apply to loopback addresses too.
	Loopback bool
}

func (l Limits) withDefaults() Limits {
	l.Streams, l.PodStreams, l.Unreported = cmp.Or(l.Streams, 5_000), cmp.Or(l.PodStreams, 4), cmp.Or(l.Unreported, 64)
	l.Rate, l.Burst = cmp.Or(l.Rate, 10), cmp.Or(l.Burst, 20)
	return l
}

// streamLimiter bounds the number of open streams, in total and for each pod. If the total is reached, the namespaces
// get equal shares of it.
type streamLimiter struct {
	limits Limits

	mu   sync.Mutex
	open int
	// namespaces contains the streams of pods by namespace. The streams of other readers are only counted in open.
	namespaces map[string]*namespaceStreams
	// large is stream.large of the readers that are not pods.
	large chan struct{}
}

// namespaceStreams contains the open streams of the pods of one namespace.
type namespaceStreams struct {
	open int
	// unreported is the number of streams with stream.unreported.
	unreported int
	// pods contains the streams of each pod, the oldest first.
	pods map[string][]*stream
	// large is stream.large of these streams, so that pods wait only for pods of the same namespace.
	large chan struct{}
}

// largeFrames is the maximum number of large frames of one namespace, or of all readers that are not pods, in memory at
// the same time.
const largeFrames = 8

var (
	errReplaced = errors.New("the pod has opened a newer stream")
	errEvicted  = errors.New("all streams are open, and a namespace with fewer of them needs one")
)

func newStreamLimiter(l Limits) *streamLimiter {
	return &streamLimiter{
		limits: l, namespaces: map[string]*namespaceStreams{}, large: make(chan struct{}, largeFrames),
	}
}

// acquire registers a new stream, and reports whether it may open. If no node has reported the pod, its namespace may
// have few such streams. If the pod has too many streams, its oldest stream ends. If all streams are in use, a stream
// of the namespace with the most streams ends. The new stream is refused instead if its own namespace would then have
// at least as many streams as the other namespace had before.
func (l *streamLimiter) acquire(by Grant, next *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if by.Pod == "" {
		// A reader of all configs, such as an auth service or a replica, counts as a namespace without streams.
		if l.open >= l.limits.Streams && !(by.All && l.evict(&namespaceStreams{})) {
			return false
		}
		l.open++
		next.large = l.large
		return true
	}
	own := l.namespace(by)
	switch {
	case by.Unreported && own.unreported >= l.limits.Unreported:
		return false
	case len(own.pods[by.Pod]) >= l.limits.PodStreams:
		l.endOldest(own, by.Pod, errReplaced)
	case l.open >= l.limits.Streams && !l.evict(own):
		l.prune(by)
		return false
	}
	l.open++
	own.open++
	if next.unreported = by.Unreported; next.unreported {
		own.unreported++
	}
	next.large = own.large
	own.pods[by.Pod] = append(own.pods[by.Pod], next)
	return true
}

// namespace returns the streams in the namespace of a pod.
func (l *streamLimiter) namespace(of Grant) *namespaceStreams {
	name, _, _ := strings.Cut(of.ID, "/")
	if l.namespaces[name] == nil {
		l.namespaces[name] = &namespaceStreams{pods: map[string][]*stream{}, large: make(chan struct{}, largeFrames)}
	}
	return l.namespaces[name]
}

// evict ends a stream of the namespace with the most streams. It returns false, and ends no stream, if the namespace
// own with one more stream would have at least as many.
func (l *streamLimiter) evict(own *namespaceStreams) bool {
	most := own
	for _, other := range l.namespaces {
		if other.open > most.open {
			most = other
		}
	}
	if most.open <= own.open+1 {
		return false
	}
	fullest := ""
	for pod, open := range most.pods {
		if len(open) > len(most.pods[fullest]) {
			fullest = pod
		}
	}
	l.endOldest(most, fullest, errEvicted)
	return true
}

// endOldest ends the oldest stream of a pod.
func (l *streamLimiter) endOldest(in *namespaceStreams, pod string, cause error) {
	oldest := in.pods[pod][0]
	l.remove(in, pod, oldest)
	oldest.cancel(cause)
}

// release unregisters a stream that has ended, unless endOldest has done so already.
func (l *streamLimiter) release(by Grant, ended *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if by.Pod == "" {
		l.open--
		return
	}
	if own := l.namespace(by); slices.Contains(own.pods[by.Pod], ended) {
		l.remove(own, by.Pod, ended)
	}
	l.prune(by)
}

// prune removes the namespace of a pod if it has no streams.
func (l *streamLimiter) prune(of Grant) {
	if name, _, _ := strings.Cut(of.ID, "/"); l.namespace(of).open == 0 {
		delete(l.namespaces, name)
	}
}

// remove unregisters a stream of a pod.
func (l *streamLimiter) remove(in *namespaceStreams, pod string, ended *stream) {
	l.open--
	in.open--
	if ended.unreported {
		in.unreported--
	}
	in.pods[pod] = slices.DeleteFunc(in.pods[pod], func(s *stream) bool { return s == ended })
	if len(in.pods[pod]) == 0 {
		delete(in.pods, pod)
	}
}

// reported is called when a node has reported the pod of an open stream. The stream then no longer counts towards
// Limits.Unreported.
func (l *streamLimiter) reported(by Grant, open *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, _, _ := strings.Cut(by.ID, "/")
	if own := l.namespaces[name]; own != nil && open.unreported && slices.Contains(own.pods[by.Pod], open) {
		open.unreported = false
		own.unreported--
	}
}

// count returns the number of open streams.
func (l *streamLimiter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}
