package discovery

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// TestContractList fixes the wire form of a List, and that only readers which request it receive one, after the
// configs. Readers of other releases do not support the frame, and would reject it as a config.
func TestContractList(t *testing.T) {
	s := NewServer(ServerOptions{})
	s.SetComplete(false)
	s.SetUnpublished([]string{"media/b", "games/a"})
	s.Publish(config.Zero("media/a"))
	client := piped(t, s)
	old, all := follows(t, client, "?watch=true"), follows(t, client, "?watch=true&list=true")
	namespace, one := follows(t, client, "/media?watch=true&list=true"), follows(t, client, "/media/a?watch=true&list=true")
	next := func(name string, read func(context.Context) (string, error)) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		text, err := read(ctx)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.HasPrefix(text, `{"list":`) {
			return text
		}
		c, _, err := config.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%s: %s: %v", name, text, err)
		}
		return c.Admin.Name
	}
	readers := map[string]func(context.Context) (string, error){}
	for name, conn := range map[string]interface {
		Read(context.Context) (websocket.MessageType, []byte, error)
	}{"old": old, "all": all, "namespace": namespace, "one": one} {
		readers[name] = func(ctx context.Context) (string, error) {
			_, data, err := conn.Read(ctx)
			return string(data), err
		}
	}
	expect := func(name string, want ...string) {
		t.Helper()
		for _, w := range want {
			if got := next(name, readers[name]); got != w {
				t.Errorf("%s: frame %s, want %s", name, got, w)
			}
		}
	}
	expect("all", "media/a", `{"list":{"complete":false,"unpublished":2}}`)
	expect("namespace", "media/a", `{"list":{"complete":false,"unpublished":1}}`)
	s.SetComplete(true)
	expect("all", `{"list":{"complete":true,"unpublished":2}}`)
	expect("namespace", `{"list":{"complete":true,"unpublished":1}}`)
	s.SetUnpublished([]string{"games/a", "media/b"})
	s.SetUnpublished([]string{"media/b"})
	expect("all", `{"list":{"complete":true,"unpublished":1}}`)
	s.Publish(config.Zero("media/b"))
	s.SetUnpublished(nil)
	expect("all", "media/b", `{"list":{"complete":true,"unpublished":0}}`)
	expect("namespace", "media/b", `{"list":{"complete":true,"unpublished":0}}`)
	s.SetIdle("media/b", true)
	expect("all", `{"list":{"complete":true,"unpublished":0,"idle":["media/b"]}}`)
	s.SetIdle("games/a", true)
	s.SetIdle("games/a", true)
	expect("all", `{"list":{"complete":true,"unpublished":0,"idle":["games/a","media/b"]}}`)
	expect("namespace", `{"list":{"complete":true,"unpublished":0,"idle":["media/b"]}}`)
	s.SetIdle("media/b", false)
	s.SetIdle("never/seen", false)
	expect("all", `{"list":{"complete":true,"unpublished":0,"idle":["games/a"]}}`)
	expect("namespace", `{"list":{"complete":true,"unpublished":0}}`)
	expect("old", "media/a", "media/b")
	changed := config.Zero("media/a")
	changed.Admin.LogLevel = "all:DEBUG"
	expect("one", "media/a")
	s.Publish(changed)
	expect("one", "media/a")
}

// A List names no idle Gateways if there are too many of them.
func TestIdleGatewaysAreBounded(t *testing.T) {
	l := listing{idle: map[string]bool{}}
	for i := range maxIdle {
		l.idle[fmt.Sprintf("media/%d", i)] = true
	}
	if got := l.of("").Idle; len(got) != maxIdle || !slices.IsSorted(got) {
		t.Errorf("%d idle Gateways: %v", len(got), got)
	}
	l.idle["media/more"] = true
	if got := l.of("").Idle; got != nil {
		t.Errorf("%d idle Gateways, want none", len(got))
	}
}

// The first event of a connection reports whether Lists will follow. The last List follows the configs that were sent
// before it, also to a reader that is slow.
func TestListFollowsTheConfigs(t *testing.T) {
	s := NewServer(ServerOptions{})
	h := httptest.NewServer(s)
	defer h.Close()
	for _, lists := range []bool{true, false} {
		s.SetComplete(false)
		source, err := Open(h.URL, Options{Lists: lists})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		events := source.Watch(ctx)
		if first := <-events; !first.Connected || (first.List != nil) != lists || lists && !first.List.equal(List{}) {
			t.Fatalf("lists %t: the first event is %+v", lists, first)
		}
		const gateways = 50
		for i := range gateways {
			c := config.Zero(fmt.Sprintf("media/%d", i))
			c.Admin.LogLevel = map[bool]string{true: "all:DEBUG", false: "all:TRACE"}[lists]
			s.SetUnpublished([]string{c.Admin.Name})
			s.Publish(c)
		}
		s.SetUnpublished(nil)
		s.SetComplete(true)
		var seen []string
		for complete := false; !complete && (lists || len(seen) < gateways); {
			e, open := <-events
			switch {
			case !open:
				t.Fatalf("lists %t: only %d configs", lists, len(seen))
			case e.List != nil && !lists:
				t.Fatal("a reader that has not requested Lists gets one")
			case e.List != nil:
				complete = e.List.equal(List{Complete: true})
			case !slices.Contains(seen, e.ID):
				seen = append(seen, e.ID)
			}
		}
		if len(seen) != gateways {
			t.Errorf("lists %t: %d configs before the complete list, want %d", lists, len(seen), gateways)
		}
		cancel()
		for range events {
		}
	}
}
