package tenant

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/coder/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// audience is the audience of tokens for config discovery.
const audience = "stunner-discovery"

// labelsOf returns the labels of a dataplane pod of a Gateway.
func labelsOf(namespace, gateway string) map[string]string {
	return map[string]string{
		"app": "stunner", "stunner.l7mp.io/related-gateway-name": gateway,
		"stunner.l7mp.io/related-gateway-namespace": namespace,
	}
}

func (n *tenant) account(name string) *corev1.ServiceAccount {
	n.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name}}
	if err := n.Create(n.Context(), account); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	return account
}

// podToken creates a pod, unless it exists, and a token for config discovery that is bound to it.
func (n *tenant) podToken(name string, labels map[string]string) string {
	n.Helper()
	account := n.account("spy")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: n.name, Name: name, Labels: labels,
	}, Spec: corev1.PodSpec{
		ServiceAccountName: account.Name, NodeName: workerNode,
		Containers: []corev1.Container{{Name: "spy", Image: "example.net/spy"}},
	}}
	if err := n.Create(n.Context(), pod); !apierrors.IsAlreadyExists(err) {
		n.must(err)
	}
	bound := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name}
	return n.tokenOf(account, bound, audience)
}

// dataplaneToken returns a token of a pod that has the labels of a dataplane of a Gateway.
func (n *tenant) dataplaneToken(gateway string) string {
	n.Helper()
	return n.podToken("spy-of-"+gateway, labelsOf(n.name, gateway))
}

// tokenOf requests a token as the tenant.
func (n *tenant) tokenOf(
	account *corev1.ServiceAccount, bound *authenticationv1.BoundObjectReference, audiences ...string,
) string {
	n.Helper()
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, BoundObjectRef: bound},
	}
	n.must(n.SubResource("token").Create(n.Context(), account, request))
	return request.Status.Token
}

// caller returns a client with an address of its own, as a pod has. It verifies the CA of config discovery.
func (p *product) caller(address string) *http.Client {
	from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{
		Transport:     &http.Transport{DialContext: from.DialContext, TLSClientConfig: &tls.Config{RootCAs: p.roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get sends a request to config discovery.
func (p *product) get(ctx context.Context, by *http.Client, token, path string) (code int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Discovery+path, nil)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := by.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// ask sends a request to config discovery, whose answer must hold no secret of others.
func (n *tenant) ask(token, path string) (code int, body []byte) {
	n.Helper()
	code, body, err := run.get(n.Context(), n.caller, token, path)
	n.must(err)
	n.finds(path, body)
	return code, body
}

// gets checks that config discovery answers a request with a status code and without any secret.
func (n *tenant) gets(token, path string, want int) {
	n.Helper()
	if code, body := n.ask(token, path); code != want {
		n.Errorf("%s: status %d, want %d: %.200s", path, code, want, body)
	}
}

// stream follows the config of the tenant's Gateway, like a dataplane.
func (n *tenant) stream() *websocket.Conn {
	n.Helper()
	conn, err := n.dial(n.dataplaneToken("door"), make(chan struct{}, 1))
	n.must(err)
	return conn
}

// send writes text frames to a stream.
func (n *tenant) send(stream *websocket.Conn, texts ...string) {
	n.Helper()
	for _, text := range texts {
		n.must(stream.Write(n.Context(), websocket.MessageText, []byte(strings.ReplaceAll(text, "TENANT", n.name))))
	}
}

// dial opens a stream of the config of the tenant's Gateway. It sends to ended when the stream has ended.
func (n *tenant) dial(token string, ended chan<- struct{}) (*websocket.Conn, error) {
	n.Helper()
	conn, response, err := websocket.Dial(
		n.Context(), run.Discovery+"/api/v1/configs/"+n.name+"/door?watch=true",
		&websocket.DialOptions{HTTPClient: n.caller, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		return nil, fmt.Errorf("follow config: %w: %v", err, response)
	}
	n.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(32 << 20)
	ctx := context.WithoutCancel(n.Context())
	go func() { // reading also answers pings
		for {
			if _, _, err := conn.Read(ctx); err != nil {
				ended <- struct{}{}
				return
			}
		}
	}()
	return conn, nil
}

// iceServers asks the auth service for ICE servers by its API if body is not empty, else by a path of the legacy API.
// The answer must hold no secret of others.
func (n *tenant) iceServers(path, body string, header http.Header) (code int, answer string) {
	n.Helper()
	method := http.MethodGet
	if body != "" {
		method, path = http.MethodPost, "/v1/ice-servers"
	}
	request, err := http.NewRequestWithContext(n.Context(), method, run.Auth+path, strings.NewReader(body))
	n.must(err)
	if header != nil {
		request.Header = header
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := n.caller.Do(request)
	n.must(err)
	text, err := io.ReadAll(response.Body)
	n.must(errors.Join(err, response.Body.Close()))
	n.finds("answer of the auth service", text)
	return response.StatusCode, string(text)
}
