package probe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// defaultHealthPort is the port of an endpoint without one.
const defaultHealthPort = 8086

// healthPort returns the port of the probes of kubelets, or 0 if they are not served.
func healthPort(c config.Config) int {
	endpoint := config.DefaultHealthcheck
	if c.Admin.HealthcheckEndpoint != nil {
		endpoint = *c.Admin.HealthcheckEndpoint
	}
	u, err := url.Parse(config.EndpointURL(endpoint))
	if err != nil || u.Scheme != "http" {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return defaultHealthPort
	}
	return port
}

// health requests the liveness probe of a pod.
func (o Options) health(ctx context.Context, pod string, port int) diagnose.ProbedPod {
	p := diagnose.ProbedPod{Pod: pod}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connected := false
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := o.DialPod(ctx, pod, port)
			connected = err == nil
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pod/live", http.NoBody)
	if err == nil {
		var response *http.Response
		if response, err = client.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxDatagram))
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = fmt.Errorf("%w: its probe /live answers %s", errRefused, response.Status)
			}
		} else if connected && !timedOut(err) {
			err = fmt.Errorf("%w: the connection was closed", errRefused) // a forwarded port accepts before the pod does
		}
	}
	p.Result, p.Detail = outcome(err)
	return p
}

// listener sends a Binding request to a listener of a pod over TCP or TLS.
func (o Options) listener(ctx context.Context, pod string, l config.Listener) diagnose.ProbedPod {
	p := diagnose.ProbedPod{Pod: pod, Listener: name(l.Name)}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := o.DialPod(ctx, pod, l.Port)
	if err == nil {
		var w *serverConn
		if w, err = wrap(ctx, conn, l.Protocol, cmp.Or(l.PublicHost, l.PublicAddress)); err == nil {
			_, err = w.bind(ctx, 0)
			w.end()
		}
	}
	p.Result, p.Detail = outcome(err)
	return p
}

// probe sends a Binding request.
func (l Direct) probe(ctx context.Context) diagnose.ProbedPod {
	p := diagnose.ProbedPod{Pod: l.Pod, Listener: name(l.Listener)}
	w, err := dial(ctx, l.Protocol, l.Address, "")
	if err == nil {
		_, err = w.bind(ctx, 0)
		w.end()
	}
	p.Result, p.Detail = outcome(err)
	return p
}

func outcome(err error) (diagnose.ProbeResult, string) {
	if err == nil {
		return diagnose.ProbeAnswered, ""
	}
	err = inWords(err)
	return resultOf(err), err.Error()
}
