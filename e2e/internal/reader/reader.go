// Package reader is a discovery client that reads one config as a dataplane does, and records each frame that differs
// from the one before. It shares no code with the product, so that it observes the wire format.
package reader

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	limit = 4 << 20
	// pause is the delay before a reconnect. A random time up to the same length is added, because a thousand readers may
	// reconnect at once.
	pause = 250 * time.Millisecond
)

// answerTime is the response timeout of a dataplane, and pingEvery its ping interval. firstDelay and lastDelay are the
// limits of its delay between reconnects.
const (
	answerTime = 5 * time.Second
	pingEvery  = 5 * time.Second
	firstDelay = 200 * time.Millisecond
	lastDelay  = 10 * time.Second
)

// Frame is a config as received.
type Frame struct {
	At   time.Time
	Data []byte
}

// Reader is one discovery client. It reconnects whenever its connection ends.
type Reader struct {
	url     string
	options *websocket.DialOptions
	// asDataplane enables pings as a dataplane sends them.
	asDataplane bool

	mu        sync.Mutex
	last      Frame
	changes   int
	refused   int
	visits    int
	connected bool
	served    time.Time     // when the first frame of this connection arrived
	later     time.Duration // Retry-After of the last refusal
	stirred   chan struct{} // closed and replaced when any field above changes
}

// Read reads the config ID of the discovery server at http://ADDRESS until ctx ends.
func Read(ctx context.Context, address, id string) *Reader {
	r := &Reader{url: "ws://" + address + "/api/v1/configs/" + id + "?watch=true", stirred: make(chan struct{})}
	go func() {
		for ctx.Err() == nil {
			r.visit(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(pause + rand.N(pause)):
			}
		}
	}()
	return r
}

// ReadAs reads over TLS with a token, with the timing of a dataplane: pings, growing delays between reconnects, and
// Retry-After.
func ReadAs(ctx context.Context, address, id, token string, security *tls.Config) *Reader {
	r := &Reader{
		url: "wss://" + address + "/api/v1/configs/" + id + "?watch=true", asDataplane: true,
		stirred: make(chan struct{}),
		options: &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
			HTTPClient: &http.Client{Transport: &http.Transport{
				TLSClientConfig: security, DisableKeepAlives: true, TLSHandshakeTimeout: answerTime,
				ResponseHeaderTimeout: answerTime,
			}},
		},
	}
	go func() {
		delay := firstDelay
		for ctx.Err() == nil {
			begun := time.Now()
			r.visit(ctx)
			if time.Since(begun) > lastDelay {
				delay = firstDelay
			}
			wait := delay/2 + rand.N(delay/2)
			delay = min(2*delay, lastDelay)
			if r.later > 0 {
				wait = r.later + rand.N(r.later)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}()
	return r
}

// visit makes one connection and reads until it ends.
func (r *Reader) visit(ctx context.Context) {
	conn, resp, err := websocket.Dial(ctx, r.url, r.options)
	r.later = 0
	if err != nil {
		r.note(func() {
			if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
				r.refused++
				seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
				r.later = time.Duration(seconds) * time.Second
			}
		})
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(limit)
	r.note(func() { r.connected, r.visits = true, r.visits+1 })
	defer r.note(func() { r.connected, r.served = false, time.Time{} })
	if r.asDataplane {
		alive, end := context.WithCancel(ctx)
		defer end()
		go func() {
			for alive.Err() == nil {
				select {
				case <-alive.Done():
				case <-time.After(pingEvery):
					_ = conn.Ping(alive) // if the ping fails, the read returns the error
				}
			}
		}()
	}
	for {
		_, data, err := conn.Read(ctx)
		if err != nil {
			return
		}
		now := time.Now()
		r.note(func() {
			if r.served.IsZero() {
				r.served = now
			}
			if !bytes.Equal(data, r.last.Data) {
				r.last, r.changes = Frame{now, data}, r.changes+1
			}
		})
	}
}

func (r *Reader) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.stirred)
	r.stirred = make(chan struct{})
}

// State is a snapshot of what a reader has recorded.
type State struct {
	// Last is the newest frame. Changes is the number of frames that differed from the previous one, including the
	// first frame.
	Last    Frame
	Changes int
	// Visits counts connections. Refused counts connection attempts that got an HTTP error.
	Visits, Refused int
	Connected       bool
	// Served is when the first frame of the current connection arrived. It is zero before that.
	Served time.Time
}

// State returns the current state.
func (r *Reader) State() State {
	s, _ := r.look()
	return s
}

func (r *Reader) look() (State, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return State{
		Last: r.last, Changes: r.changes, Visits: r.visits, Refused: r.refused, Connected: r.connected,
		Served: r.served,
	}, r.stirred
}

// Await waits until wanted returns true for the state.
func (r *Reader) Await(ctx context.Context, wanted func(State) bool) (State, error) {
	for {
		s, stirred := r.look()
		if wanted(s) {
			return s, nil
		}
		select {
		case <-stirred:
		case <-ctx.Done():
			return s, fmt.Errorf(
				"read config at %s: %w: %d frames, the last of %d bytes", r.url, context.Cause(ctx), s.Changes,
				len(s.Last.Data),
			)
		}
	}
}
