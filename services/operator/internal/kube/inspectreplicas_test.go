package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
	"github.com/stunner-gateway/stunner/services/operator/internal/trust"
)

// inspectedReplica is a replica of the operator with config discovery and the inspection API over TLS.
type inspectedReplica struct {
	address string
	seen    inspected
	mu      sync.Mutex
	// reviewed are the tokens of TokenReviews.
	reviewed []string
}

// reviews returns a client of an API server that knows the token of-ada. Its user, ada, may read everything.
func (r *inspectedReplica) reviews() *fake.Clientset {
	clients := fake.NewClientset()
	clients.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reviewed = append(r.reviewed, review.Spec.Token)
		review.Status.Authenticated = review.Spec.Token == "of-ada" && len(review.Spec.Audiences) == 0
		review.Status.User.Username = "ada"
		return true, review, nil
	})
	clients.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = review.Spec.User == "ada" && review.Spec.ResourceAttributes.Verb != "delete"
		return true, review, nil
	})
	return clients
}

// A replica answers for pods that are connected to another replica. It finds that replica in the EndpointSlices,
// verifies its certificate, and uses its own token.
func TestInspectionCoversAllReplicas(t *testing.T) {
	const account = "stunner-system:operator"
	s, dir, now := newSigner(t, "first"), t.TempDir(), time.Now()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority, err := trust.Authority{}.Next(now)
	if err != nil {
		t.Fatal(err)
	}
	ca := write("ca.crt", authority.Bundle())
	own := write("token", s.token(func(c map[string]any) {
		c["sub"], c["kubernetes.io"] = accountPrefix+account, map[string]any{}
	}))
	settings := Settings{
		Namespace: "stunner-system", DiscoveryAuth: AuthStrict, TokenFile: own, Log: slog.New(slog.DiscardHandler),
		Options: translate.DefaultOptions(),
	}
	var replicas [2]*inspectedReplica
	for i := range replicas {
		r := &inspectedReplica{}
		replicas[i] = r
		name := fmt.Sprintf("relay-%d", i)
		pod := relayPod()
		pod.Name = name
		readers := newAsked(t, func() (keySet, error) { return s.set(), nil },
			func() (authenticationv1.TokenReviewStatus, error) { return confirmed(account, "", ""), nil }, []*corev1.Pod{pod}...)
		r.seen.pods = readers.pods
		readers.readers, readers.clients = []string{accountPrefix + account}, r.reviews()
		server := discovery.NewServer(discovery.ServerOptions{Authorize: readers.authorize})
		id := newIdentity(settings)
		if err := id.Renew(authority, now); err != nil {
			t.Fatal(err)
		}
		p := &Provider{Settings: settings}
		p.Identity = fmt.Sprintf("replica-%d", i)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.address = ln.Addr().String()
		h := &http.Server{
			Handler:           newInspection(p, server, &readers.authorizer, id, &r.seen, newMeters()).Or(server),
			ReadHeaderTimeout: time.Minute,
		}
		go func() { _ = h.Serve(discoveryListener(settings, ln, id, func(netip.Addr) {})) }()
		t.Cleanup(func() { _ = h.Close() })
		token := write(name, s.token(func(c map[string]any) {
			c["kubernetes.io"].(map[string]any)["pod"] = map[string]any{"name": name, "uid": "7d3e"}
		}))
		source, err := discovery.Open("https://"+r.address, discovery.Options{
			ID: "media/door", TokenFile: token, CAFile: ca, Pod: name, Kind: inspection.Dataplane,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprintf(w, `{"pod":%q}`, name)
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		events := source.Watch(t.Context())
		go func() {
			for range events {
			}
		}()
	}
	_, port, _ := net.SplitHostPort(replicas[1].address)
	var number int32
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the test needs no reports
	peers := newPeerReplicas(ctx, settings, reports.New(settings.Log), nil,
		func(urls []string) { replicas[0].seen.peers.Store(&urls) })
	peers.update([]*discoveryv1.EndpointSlice{{
		Ports:     []discoveryv1.EndpointPort{{Port: &number}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}},
	}})

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(authority.Bundle()))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer client.CloseIdleConnections()
	get := func(path string) (code int, body string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+replicas[0].address+"/api/v1/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer of-ada")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	var list inspection.List
	connected := func() bool { return len(list.Items) == 2 && len(list.Incomplete) == 0 }
	for deadline := time.Now().Add(20 * time.Second); !connected(); time.Sleep(20 * time.Millisecond) {
		code, body := get("gateways/media/door/sessions")
		if code == http.StatusOK {
			list = inspection.List{}
			if err := json.Unmarshal([]byte(body), &list); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %s", code, body)
		}
	}
	for i, item := range list.Items {
		if name := fmt.Sprintf("relay-%d", i); item.Pod != name || string(item.Body) != `{"pod":"`+name+`"}` {
			t.Errorf("item %d: %+v", i, item)
		}
	}
	if len(replicas[0].reviewed) != 1 || len(replicas[1].reviewed) != 0 {
		t.Errorf("TokenReviews of %q and %q, want one for the caller at the first replica", replicas[0].reviewed,
			replicas[1].reviewed)
	}
	if code, body := get("operator"); code != http.StatusOK || !strings.Contains(body, `"replica":"replica-0"`) {
		t.Errorf("operator: %d %s", code, body)
	}
}
