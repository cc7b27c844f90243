package discovery

import (
	"errors"
	"slices"
	"strings"
	"sync"
)

// seats are the open streams. A pod has few of them, and namespaces share them when there are no more.
type seats struct {
	limits Limits

	mu    sync.Mutex
	count int
	// shares are the streams of the pods of each namespace. Streams of other readers are counted only.
	shares map[string]*share
}

// share is what the pods of one namespace have.
type share struct {
	count int
	// pods are the streams of each pod, the oldest first.
	pods map[string][]*stream
}

var (
	errReplaced = errors.New("the pod has opened a newer stream")
	errShared   = errors.New("all streams are open, and a namespace with fewer of them needs one")
)

func newSeats(l Limits) *seats { return &seats{limits: l, shares: map[string]*share{}} }

// take finds room for a stream. Of a pod with too many streams the oldest one ends. When all streams are open, a pod takes the place of a stream of the
// namespace with the most of them, unless its own namespace would then have as many.
func (s *seats) take(by Grant, next *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by.Pod == "" {
		if s.count >= s.limits.Streams {
			return false
		}
		s.count++
		return true
	}
	own := s.share(by)
	switch {
	case len(own.pods[by.Pod]) >= s.limits.PodStreams:
		s.end(own, by.Pod, errReplaced)
	case s.count >= s.limits.Streams && !s.makeRoom(own):
		s.tidy(by)
		return false
	}
	s.count++
	own.count++
	own.pods[by.Pod] = append(own.pods[by.Pod], next)
	return true
}

// share returns what the namespace of a pod has.
func (s *seats) share(of Grant) *share {
	namespace, _, _ := strings.Cut(of.ID, "/")
	if s.shares[namespace] == nil {
		s.shares[namespace] = &share{pods: map[string][]*stream{}}
	}
	return s.shares[namespace]
}

// makeRoom ends a stream of the namespace with the most of them, if another namespace would have fewer with one more.
func (s *seats) makeRoom(guest *share) bool {
	most := guest
	for _, other := range s.shares {
		if other.count > most.count {
			most = other
		}
	}
	if most.count <= guest.count+1 {
		return false
	}
	fullest := ""
	for pod, open := range most.pods {
		if len(open) > len(most.pods[fullest]) {
			fullest = pod
		}
	}
	s.end(most, fullest, errShared)
	return true
}

// end ends the oldest stream of a pod.
func (s *seats) end(of *share, pod string, why error) {
	oldest := of.pods[pod][0]
	s.remove(of, pod, oldest)
	oldest.cancel(why)
}

// leave gives the place of a stream back, unless it was taken from it.
func (s *seats) leave(by Grant, gone *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by.Pod == "" {
		s.count--
		return
	}
	if own := s.share(by); slices.Contains(own.pods[by.Pod], gone) {
		s.remove(own, by.Pod, gone)
	}
	s.tidy(by)
}

// tidy forgets the namespace of a pod if it has no stream.
func (s *seats) tidy(of Grant) {
	if namespace, _, _ := strings.Cut(of.ID, "/"); s.share(of).count == 0 {
		delete(s.shares, namespace)
	}
}

// remove forgets a stream of a pod.
func (s *seats) remove(of *share, pod string, gone *stream) {
	s.count--
	of.count--
	of.pods[pod] = slices.DeleteFunc(of.pods[pod], func(o *stream) bool { return o == gone })
	if len(of.pods[pod]) == 0 {
		delete(of.pods, pod)
	}
}

// taken is how many streams are open.
func (s *seats) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}
