package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	forwardTimeout = 10 * time.Second
	tokenMargin    = time.Minute // time before its expiry at which a token is replaced
)

// forwarder connects to ports of pods as kubectl port-forward does.
type forwarder struct {
	config *rest.Config
	rest   rest.Interface
}

// dial connects to a port of a pod: over WebSocket, or SPDY at API servers before Kubernetes 1.31. Closing the
// connection ends the forwarding.
func (f forwarder) dial(ctx context.Context, pod types.NamespacedName, port int32) (net.Conn, error) {
	dialer, err := f.dialer(pod)
	if err != nil {
		return nil, err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	ports := []string{"0:" + strconv.Itoa(int(port))}
	forward, err := portforward.NewOnAddressesForStreaming(
		dialer,
		[]string{"127.0.0.1"},
		ports,
		stop,
		ready,
		io.Discard,
		io.Discard,
	)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forward.ForwardPorts() }()
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	select {
	case <-ready:
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		close(stop)
		return nil, fmt.Errorf("the API server does not answer: %w", context.Cause(ctx))
	}
	local, err := forward.GetPorts()
	if err == nil {
		var conn net.Conn
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(local[0].Local)))
		if conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address); err == nil {
			return &forwarded{Conn: conn, stop: stop}, nil
		}
	}
	close(stop)
	return nil, err
}

func (f forwarder) dialer(pod types.NamespacedName) (httpstream.Dialer, error) {
	target := f.rest.Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	roundTripper, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, target)
	current, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, f.config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(current, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// forwarded is a connection over a forwarded port.
type forwarded struct {
	net.Conn
	stop chan struct{}
}

func (f *forwarded) Close() error {
	err := f.Conn.Close()
	select {
	case <-f.stop:
		return errors.Join(err, net.ErrClosed)
	default:
		close(f.stop)
	}
	return err
}

// DialPod connects to a port of a pod.
func (c *Cluster) DialPod(ctx context.Context, pod types.NamespacedName, port int32) (net.Conn, error) {
	return c.dial(ctx, pod, port)
}

// Dial connects to a port of a ready pod with the labels of the selector.
func (c *Cluster) Dial(ctx context.Context, namespace, selector string, port int32) (net.Conn, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods in namespace %s: %w", namespace, err)
	}
	pods := readyOf(list.Items)
	if len(pods) == 0 {
		return nil, fmt.Errorf("no ready pod with the label %s in namespace %s", selector, namespace)
	}
	var errs []error
	for _, pod := range pods {
		conn, err := c.dial(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, port)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("forward a port to pod %s: %w", pod.Name, err))
	}
	return nil, errors.Join(errs...)
}
