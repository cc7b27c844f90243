package discovery

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// SetPeers replaces the list of peers of the Gateway id; nil means that there is none. The list is sent to the
// dataplane pods of the Gateway that report a Peer: over each stream at once, or 200 ms after the previous list.
func (s *Server) SetPeers(id string, p *Peers) error {
	var frame []byte
	if p != nil {
		if err := p.Validate(); err != nil {
			return err
		}
		data, err := json.Marshal(peersFrame{*p})
		if err != nil {
			return fmt.Errorf("encode peers: %w", err)
		}
		frame = data
	}
	s.peers.set(id, frame)
	return nil
}

// The reasons for which a dataplane that reports a Peer gets no keys.
const (
	noPeersWithoutAuth = "config discovery does not authenticate its clients, so it sends no keys for forwarding: " +
		"set --discovery-auth=strict on the operator"
	noPeersWithoutPod = "the connection to config discovery is not authenticated as a pod of the Gateway, so it gets no " +
		"keys for forwarding: use the token of the pod"
)

// peerReader decides whether one stream receives the list of peers. Only the goroutine that reads the stream uses it.
type peerReader struct {
	server  *Server
	watcher *watcher
	grant   Grant
	log     *slog.Logger
	// joined is the Gateway whose list the stream receives, or "".
	joined string
	// told is set when the reason for not sending lists was sent on the stream.
	told bool
}

// read removes Peer and Sender from a report, unless they are valid and the caller is the pod. The rest of the report
// stays valid. The first valid Peer makes the stream receive the list of peers.
func (p *peerReader) read(r *Report) {
	if r.Peer != "" {
		err := p.check(r)
		if err == nil {
			p.joined = r.ID
			p.server.peers.join(r.ID, p.watcher)
			return
		}
		p.server.count(Misreported, "from", p.grant.Pod)
		p.log.Debug("peer of a report is ignored", "id", r.ID, "pod", r.Pod, "error", err)
	}
	r.Peer, r.Sender = "", ""
	p.close()
}

// mayJoin reports whether the caller may receive keys. If not, it sends the reason to the client, once for each stream.
func (p *peerReader) mayJoin(r *Report) bool {
	g, problem := p.grant, noPeersWithoutPod
	switch {
	case r.Peer == "" || g.Pod != "" && !g.redacted && !g.ForAuth:
		return true
	case p.server.options.Authorize == nil:
		problem = noPeersWithoutAuth
	}
	r.Peer, r.Sender = "", ""
	if !p.told {
		p.told = true
		if frame, err := json.Marshal(peersFrame{Peers{Keys: []PeerKey{}, Pods: []Peer{}, Problem: problem}}); err == nil {
			p.watcher.put(peersOf(frame))
		}
	}
	return false
}

// check validates Peer and Sender, and writes them in their canonical form.
func (p *peerReader) check(r *Report) error {
	peer, err := r.AsPeer()
	if err != nil {
		return err
	}
	if verify := p.server.options.VerifyPeer; verify != nil {
		if err := verify(r.ID, peer); err != nil {
			return err
		}
	}
	r.Peer, r.Sender = peer.Address.String(), peer.Sender.String()
	return nil
}

// close ends the delivery of lists.
func (p *peerReader) close() {
	if p.joined != "" {
		p.server.peers.leave(p.joined, p.watcher)
		p.joined = ""
	}
}

// peerLists contains the list of peers of each Gateway, and the streams that receive it.
type peerLists struct {
	mu    sync.Mutex
	lists map[string]*peerList
}

type peerList struct {
	// frame is nil while there is no list.
	frame []byte
	// scheduled is set while a timer will send the frame.
	scheduled bool
	readers   map[*watcher]*listReader
}

// listReader is a stream that receives a list. Each stream has its own interval: a pod that connects gets the list at
// once, and this does not delay the next list, which includes this pod, for the others.
type listReader struct {
	has  bool // the frame was sent on the stream
	sent time.Time
}

func (l *peerLists) set(id string, frame []byte) {
	l.change(id, func(list *peerList) {
		if bytes.Equal(list.frame, frame) {
			return
		}
		list.frame = frame
		for _, r := range list.readers {
			r.has = false
		}
	})
}

func (l *peerLists) join(id string, w *watcher) {
	l.change(id, func(list *peerList) {
		if list.readers[w] == nil {
			list.readers[w] = &listReader{}
		}
	})
}

func (l *peerLists) leave(id string, w *watcher) {
	l.change(id, func(list *peerList) { delete(list.readers, w) })
}

// change changes the list of a Gateway, and then sends it to the readers that do not have it.
func (l *peerLists) change(id string, change func(*peerList)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.lists[id]
	if list == nil {
		list = &peerList{readers: map[*watcher]*listReader{}}
		l.lists[id] = list
	}
	change(list)
	if list.frame == nil && len(list.readers) == 0 {
		delete(l.lists, id)
		return
	}
	l.send(list)
}

// send sends the list to the readers that do not have it: at once, or when their interval is over. The caller must hold
// mu.
func (l *peerLists) send(list *peerList) {
	if list.frame == nil {
		return
	}
	now, wait := time.Now(), time.Duration(0)
	for w, r := range list.readers {
		switch left := peersInterval - now.Sub(r.sent); {
		case r.has:
		case left > 0:
			wait = min(cmp.Or(wait, left), left)
		default:
			w.put(peersOf(list.frame))
			r.has, r.sent = true, now
		}
	}
	if wait > 0 && !list.scheduled {
		list.scheduled = true
		time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			list.scheduled = false
			l.send(list)
		})
	}
}
