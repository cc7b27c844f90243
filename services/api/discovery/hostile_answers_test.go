package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// hostile is the server's end of streams of clients that do not follow the protocol, in virtual time.
type hostile struct {
	*testing.T
	*Server
	clients     *http.Client
	misreported atomic.Int64
}

// versus runs a test against a server whose Authorize returns the given grant.
func versus(t *testing.T, grant Grant, run func(*hostile)) {
	synctest.Test(t, func(t *testing.T) {
		v := &hostile{T: t}
		v.Server = NewServer(ServerOptions{
			Authorize: func(*http.Request) (Grant, error) { return grant, nil },
			OnRefusal: func(why Refusal) {
				if why == Misreported {
					v.misreported.Add(1)
				}
			},
		})
		v.clients = piped(t, v.Server)
		run(v)
	})
}

// stream opens a stream and sends frames.
func (v *hostile) stream(path string, frames ...string) *websocket.Conn {
	v.Helper()
	conn := follows(v.T, v.clients, path+"?watch=true")
	conn.SetReadLimit(frameLimit)
	for _, f := range frames {
		v.send(conn, f)
	}
	synctest.Wait()
	return conn
}

func (v *hostile) send(conn *websocket.Conn, frame string) {
	v.Helper()
	if err := conn.Write(v.Context(), websocket.MessageText, []byte(frame)); err != nil {
		v.Error(err)
	}
}

// discard reads frames, and thereby answers pings, until the stream ends.
func (v *hostile) discard(conn *websocket.Conn) {
	go func() {
		for {
			if _, _, err := conn.Read(context.Background()); err != nil {
				return
			}
		}
	}()
}

// ask starts a query and returns its answers.
func (v *hostile) ask() <-chan string {
	answers := make(chan string, 1)
	go func() { answers <- fmt.Sprint(v.Ask(context.Background(), sessions)) }()
	synctest.Wait()
	return answers
}

const serves = `{"serves":{"pod":"a-1","kind":"dataplane"}}`

var podA = Grant{ID: "media/a", Pod: "a-1"}

// A caller answers only for itself, its own Gateway and its own kind.
func TestCallersAnswerForThemselves(t *testing.T) {
	all := Grant{All: true}
	for name, c := range map[string]struct {
		grant  Grant
		path   string
		frame  string
		serves bool
	}{
		"pod":                           {podA, "/media/a", serves, true},
		"pod with another name":         {podA, "/media/a", strings.Replace(serves, "a-1", "a-2", 1), false},
		"pod without a name":            {podA, "/media/a", strings.Replace(serves, "a-1", "", 1), false},
		"pod as auth service":           {podA, "/media/a", strings.Replace(serves, "dataplane", "auth", 1), false},
		"unknown kind":                  {podA, "/media/a", strings.Replace(serves, "dataplane", "operator", 1), false},
		"dataplane of all Gateways":     {all, "", serves, false},
		"dataplane with a common token": {all, "/media/a", serves, true},
		"auth service":                  {Grant{All: true, ForAuth: true}, "", strings.Replace(serves, "dataplane", "auth", 1), true},
		"auth service as dataplane":     {Grant{All: true, ForAuth: true}, "/media/a", serves, false},
		"without secrets":               {Grant{All: true, redacted: true}, "/media/a", serves, false},
		"name of 2 KiB":                 {all, "/media/a", strings.Replace(serves, "a-1", strings.Repeat("a", 2<<10), 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			versus(t, c.grant, func(v *hostile) {
				v.stream(c.path, c.frame)
				refused := v.misreported.Load() == 1
				if got := len(v.served.all()) == 1; got != c.serves || refused == c.serves {
					v.Errorf("serves %t, refused %t, want %t", got, refused, c.serves)
				}
			})
		})
	}
}

// Wrong answers are counted and harm only the stream that sends them.
func TestWrongAnswersHarmTheirStreamOnly(t *testing.T) {
	body := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	for name, c := range map[string]struct {
		answer      string
		want        string
		misreported int64
		ends        bool
	}{
		"right":         {`{"response":{"id":1,"status":200,"body":[]}}`, "[a-1 200 []]", 0, false},
		"longest":       {`{"response":{"id":1,"status":200,"body":` + body(ResponseLimit) + `}}`, `[a-1 200 "xxx`, 0, false},
		"too long":      {`{"response":{"id":1,"status":200,"body":` + body(600<<10) + `}}`, "[a-1 0  the connection of the pod has ended]", 0, true},
		"wrong id":      {`{"response":{"id":7,"status":200,"body":[]}}`, "[a-1 0  " + errNoAnswer + "]", 1, false},
		"no status":     {`{"response":{"id":1,"body":[]}}`, "[a-1 0  the pod has sent an invalid answer]", 0, false},
		"upgrade":       {`{"response":{"id":1,"status":101,"body":[]}}`, "[a-1 0  the pod has sent an invalid answer]", 0, false},
		"no body":       {`{"response":{"id":1,"status":200}}`, "[a-1 0  the pod has sent an invalid answer]", 0, false},
		"no JSON":       {`{"response":{"id":1,"status":200,"body":x}}`, "[a-1 0  " + errNoAnswer + "]", 0, false},
		"no answer":     {`{}`, "[a-1 0  " + errNoAnswer + "]", 0, false},
		"negative id":   {`{"response":{"id":-1,"status":200,"body":[]}}`, "[a-1 0  " + errNoAnswer + "]", 0, false},
		"report inside": {`{"response":{"id":1,"status":200,"body":1},"report":{"id":"media/b","pod":"a-1"}}`, "[a-1 200 1]", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			versus(t, podA, func(v *hostile) {
				conn := v.stream("/media/a", serves)
				answers := v.ask()
				if got := frame(v.T, conn); got != `{"request":{"id":1,"method":"GET","target":"/sessions"}}` {
					v.Error(got)
				}
				if c.ends {
					v.discard(conn)
					_ = conn.Write(v.Context(), websocket.MessageText, []byte(c.answer))
				} else {
					v.send(conn, c.answer)
				}
				got := <-answers
				synctest.Wait() // for the other parts of the frame
				if !strings.HasPrefix(got, c.want) || v.misreported.Load() != c.misreported {
					v.Errorf("%.100s, %d misreported", got, v.misreported.Load())
				}
				if ended := v.Streams() == 0; ended != c.ends {
					v.Errorf("ended %t", ended)
				}
				if len(v.Reports()) > 0 {
					v.Error(v.Reports())
				}
			})
		})
	}
}

// Without a request, a stream accepts only short frames, and an answer counts as misreported.
func TestAnswersNeedARequest(t *testing.T) {
	versus(t, podA, func(v *hostile) {
		conn := v.stream("/media/a", serves, `{"response":{"id":1,"status":200,"body":[]}}`)
		if v.misreported.Load() != 1 || v.Streams() != 1 {
			v.Errorf("%d misreported, %d streams", v.misreported.Load(), v.Streams())
		}
		answers := v.ask()
		frame(v.T, conn)
		v.send(conn, `{"response":{"id":1,"status":200,"body":[]}}`)
		<-answers
		_ = conn.Write(v.Context(), websocket.MessageText, []byte(strings.Repeat(" ", 2*reportLimit)))
		if synctest.Wait(); v.Streams() != 0 {
			v.Error("a long frame without a request is accepted")
		}
	})
}

// An answer that is a few seconds late is dropped, and the client is not disconnected.
func TestLateAnswersAreDropped(t *testing.T) {
	versus(t, podA, func(v *hostile) {
		conn := v.stream("/media/a", serves)
		v.discard(conn)
		if got := <-v.ask(); got != "[a-1 0  "+errNoAnswer+"]" {
			v.Error(got)
		}
		time.Sleep(lateTimeout - time.Second)
		v.send(conn, `{"response":{"id":1,"status":200,"body":"`+strings.Repeat("x", 200<<10)+`"}}`)
		if synctest.Wait(); v.Streams() != 1 || v.misreported.Load() != 0 {
			v.Errorf("%d streams, %d misreported", v.Streams(), v.misreported.Load())
		}
		_ = conn.CloseNow()
	})
}

// A client that never answers has at most four requests, and delays no other client.
func TestClientsThatNeverAnswer(t *testing.T) {
	versus(t, Grant{All: true}, func(v *hostile) {
		silent := v.stream("/media/a", serves)
		v.discard(silent)
		other := v.stream("/media/a", strings.Replace(serves, "a-1", "a-2", 1))
		go func() {
			for id := 1; ; id++ {
				if _, _, err := other.Read(v.Context()); err != nil {
					return
				}
				v.send(other, fmt.Sprintf(`{"response":{"id":%d,"status":200,"body":[]}}`, id))
			}
		}()
		start, want := time.Now(), "[a-1 0  "+errNoAnswer+" a-2 200 []]"
		var asked []<-chan string
		for range requestsPerStream {
			asked = append(asked, v.ask())
		}
		if got := <-v.ask(); got != "[a-1 0  "+errBusy+" a-2 200 []]" || time.Since(start) > 0 {
			v.Errorf("%s after %s", got, time.Since(start))
		}
		for _, a := range asked {
			if got := <-a; got != want || time.Since(start) > requestTimeout {
				v.Errorf("%s after %s", got, time.Since(start))
			}
		}
		time.Sleep(lateTimeout + time.Second)
		if got := <-v.ask(); got != want {
			v.Errorf("later %s", got)
		}
		_, _ = silent.CloseNow(), other.CloseNow()
	})
}

// A client that does not read delays the answers of other clients by five seconds at most.
func TestClientsThatDoNotReadRequests(t *testing.T) {
	versus(t, Grant{All: true}, func(v *hostile) {
		v.stream("/media/a", serves)
		other := v.stream("/media/a", strings.Replace(serves, "a-1", "a-2", 1))
		start, answers := time.Now(), v.ask()
		frame(v.T, other)
		v.send(other, `{"response":{"id":1,"status":200,"body":[]}}`)
		if got := <-answers; got != "[a-1 0  "+errNoAnswer+" a-2 200 []]" || time.Since(start) > requestTimeout {
			v.Errorf("%s after %s", got, time.Since(start))
		}
	})
}

// 10,000 announcements register one stream, and reports between them arrive.
func TestManyAnnouncements(t *testing.T) {
	versus(t, Grant{All: true}, func(v *hostile) {
		conn := v.stream("/media/a", serves)
		go func() {
			for n := range 10_000 {
				f := fmt.Sprintf(`{"serves":{"pod":"a-%d","kind":"dataplane"}}`, n)
				if conn.Write(v.Context(), websocket.MessageText, []byte(f)) != nil {
					return
				}
			}
			_ = conn.Write(v.Context(), websocket.MessageText, []byte(`{"report":{"id":"media/a","pod":"a-1"}}`))
		}()
		v.discard(conn)
		time.Sleep(10_000*frameInterval + time.Second)
		if synctest.Wait(); len(v.served.all()) != 1 || len(v.Reports()) != 1 {
			v.Errorf("%d registered, reports %v", len(v.served.all()), v.Reports())
		}
		_ = conn.CloseNow()
		if synctest.Wait(); len(v.served.all()) != 0 {
			v.Error("the registration outlives its stream")
		}
	})
}

// The rate limit of frames does not delay answers.
func TestAnswersHaveNoRateLimit(t *testing.T) {
	versus(t, podA, func(v *hostile) {
		conn, start := v.stream("/media/a", serves), time.Now()
		for id := range 10 * frameBurst {
			answers := v.ask()
			frame(v.T, conn)
			v.send(conn, fmt.Sprintf(`{"response":{"id":%d,"status":200,"body":[]}}`, id+1))
			<-answers
		}
		if took := time.Since(start); took > 0 {
			v.Errorf("answered after %s", took)
		}
	})
}

// A pod that reconnects is asked once, over its newest stream.
func TestReconnectedPodsGetOneRequest(t *testing.T) {
	versus(t, podA, func(v *hostile) {
		former, newest := v.stream("/media/a", serves), v.stream("/media/a", serves)
		v.discard(former)
		answers := v.ask()
		frame(v.T, newest)
		v.send(newest, `{"response":{"id":1,"status":200,"body":[]}}`)
		if got := <-answers; got != "[a-1 200 []]" {
			v.Error(got)
		}
		_ = former.CloseNow()
		if synctest.Wait(); len(v.served.all()) != 1 {
			v.Error("the end of the former stream ends the newest one")
		}
		_ = newest.CloseNow()
	})
}

// Answers of many pods are bounded together. Each answer belongs to its pod although the answers use the same memory.
func TestAnswersAreBoundedTogether(t *testing.T) {
	versus(t, Grant{All: true}, func(v *hostile) {
		bodyOf := func(n int) string { return `"` + strings.Repeat(string(rune('a'+n)), ResponseLimit-2) + `"` }
		for n := range answersLimit/ResponseLimit + 2 {
			conn := v.stream("/media/a", strings.Replace(serves, "a-1", fmt.Sprint("a-", n), 1))
			go func() {
				if _, _, err := conn.Read(v.Context()); err == nil {
					v.send(conn, `{"response":{"id":1,"status":200,"body":`+bodyOf(n)+`}}`)
				}
			}()
		}
		answers, size := v.Ask(context.Background(), sessions), 0
		for _, a := range answers {
			size += len(a.Body)
			n, err := strconv.Atoi(strings.TrimPrefix(a.Pod, "a-"))
			if err != nil || a.Error == "" && string(a.Body) != bodyOf(n) {
				v.Errorf("pod %s has answered %.10q: %v", a.Pod, a.Body, err)
			}
		}
		refused := slices.DeleteFunc(answers, func(a Answer) bool { return a.Error != errTooMuch })
		if size != answersLimit || len(refused) != 2 {
			v.Errorf("%d bytes, %d refused", size, len(refused))
		}
	})
}

// Each answer reserves memory for its body until the call of Ask has ended. After a large answer has found no room, a
// small answer may still fit.
func TestAnswersReserveMemory(t *testing.T) {
	room := &answerRoom{left: 10}
	for i, c := range []struct {
		length int
		want   bool
	}{{8, true}, {3, false}, {2, true}, {1, false}} {
		if got := room.reserve(c.length); got != c.want {
			t.Errorf("%d: room for %d bytes: %t", i, c.length, got)
		}
	}
	room = &answerRoom{left: 10}
	if room.close(); room.reserve(1) {
		t.Error("an answer has room after the end")
	}
}

// However many pods send large frames, only a few frames of one namespace are in memory at the same time. Frames of
// another namespace do not wait for them.
func TestFewLargeFramesAreInMemory(t *testing.T) {
	l := newStreamLimiter(Limits{Streams: 1000, PodStreams: 4})
	var crowd []*stream
	for i := range 100 {
		open, _ := sit(t, l, "greedy/door", fmt.Sprint("pod-", i))
		crowd = append(crowd, open)
	}
	var reading atomic.Int32
	read := make(chan *stream, len(crowd))
	for _, open := range crowd {
		go func() {
			data, err := open.readRest(strings.NewReader(strings.Repeat("x", ResponseLimit)), make([]byte, smallFrame))
			if err == nil && len(data) == smallFrame+ResponseLimit {
				reading.Add(1)
				read <- open
			}
		}()
	}
	modest, _ := sit(t, l, "modest/door", "pod")
	if _, err := modest.readRest(strings.NewReader("x"), nil); err != nil || modest.frame == nil {
		t.Errorf("the frame of another namespace: %v", err)
	}
	for range crowd {
		open := <-read
		if n := reading.Load(); n > largeFrames {
			t.Fatalf("%d large frames are in memory, want at most %d", n, largeFrames)
		}
		reading.Add(-1)
		open.yield()
	}
}

// FuzzClientFrame checks that no frame of a client harms a server with an outstanding request.
func FuzzClientFrame(f *testing.F) {
	for _, seed := range []string{
		serves, `{"response":{"id":1,"status":200,"body":{}}}`, `{"response":{"id":1,"status":200,"body":null}}`,
		`{"response":null,"serves":null}`, `{"serves":{"pod":"a-1","kind":"auth"}}`, `{"response":{"id":1e9}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		frame := parseClientFrame(data, nil)
		if frame.Response != nil && frame.Response.Body != nil && !json.Valid(frame.Response.Body) {
			t.Errorf("body %q", frame.Response.Body)
		}
		if frame.Serves != nil && podA.mayServe(*frame.Serves, "media/a") && *frame.Serves != (announcement{"a-1", inspection.Dataplane}) {
			t.Errorf("serves %+v", frame.Serves)
		}
	})
}

// OnServing reports that a process begins to answer requests, and that its stream has ended.
func TestServingIsReported(t *testing.T) {
	type change struct {
		pod    string
		kind   inspection.Kind
		serves bool
	}
	changes := make(chan change, 4)
	_, h := serve(t, ServerOptions{OnServing: func(pod string, kind inspection.Kind, serves bool) {
		changes <- change{pod, kind, serves}
	}})
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	open(t, h.URL, Options{Handler: handler, Pod: "auth-1", Kind: inspection.Auth}).Watch(ctx)
	if got := <-changes; got != (change{"auth-1", inspection.Auth, true}) {
		t.Errorf("%+v", got)
	}
	end()
	if got := <-changes; got.serves || got.pod != "auth-1" {
		t.Errorf("%+v", got)
	}
}
