package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// GatewayID identifies the config of the quickstart's Gateway, as NAMESPACE/NAME.
const GatewayID = "meet/front-door"

// Config returns the config that the operator serves for the quickstart's Gateway.
func (s *Stack) Config(ctx context.Context) (config.Config, error) {
	source, err := discovery.Open(s.DiscoveryURL(), discovery.Options{ID: GatewayID, TokenFile: s.tokenFile()})
	if err != nil {
		return config.Config{}, fmt.Errorf("read config of %s: %w", GatewayID, err)
	}
	configs, err := source.Load(ctx)
	if err != nil {
		return config.Config{}, fmt.Errorf("read config of %s: %w", GatewayID, err)
	}
	if len(configs) != 1 || len(configs[0].Listeners) == 0 {
		return config.Config{}, fmt.Errorf("read config of %s: it has no listener yet", GatewayID)
	}
	return configs[0].Config, nil
}

// served returns nil when the Gateway's dataplane is ready.
func (s *Stack) served(ctx context.Context) error {
	c, err := s.Config(ctx)
	if err != nil {
		return err
	}
	if c.Admin.HealthcheckEndpoint == nil || *c.Admin.HealthcheckEndpoint == "" || c.Admin.MetricsEndpoint == "" {
		return fmt.Errorf("config of %s has no endpoint for probes or metrics", GatewayID)
	}
	return Answers(health(c)+"/ready", http.StatusOK)(ctx)
}

func health(c config.Config) string { return strings.TrimSuffix(*c.Admin.HealthcheckEndpoint, "/") }

// Status returns the status that the Gateway's dataplane reports, in JSON.
func (s *Stack) Status(ctx context.Context) ([]byte, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	code, body, err := Get(ctx, health(c)+"/status")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("read status of %s: status %d", GatewayID, code)
	}
	return body, err
}

// Metric returns a metric of the Gateway's dataplane, summed over its series.
func (s *Stack) Metric(ctx context.Context, name string) (float64, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return 0, err
	}
	return Metric(ctx, c.Admin.MetricsEndpoint, name)
}

// ICE is the response of the auth service to a web app.
type ICE struct {
	Servers []ICEServer `json:"iceServers"`
	Policy  string      `json:"iceTransportPolicy"`
	Expires time.Time   `json:"expiresAt"`
}

// ICEServer holds the URLs of a gateway and a credential for them.
type ICEServer struct {
	URLs       []string `json:"urls"`
	Username   string   `json:"username"`
	Credential string   `json:"credential"`
}

// Address returns the address in the first URL of a protocol.
func (i ICEServer) Address(p config.Protocol) (netip.AddrPort, error) {
	for _, url := range i.URLs {
		uri, err := config.ParseURI(url)
		if err != nil {
			return netip.AddrPort{}, err
		}
		if uri.Protocol() == p {
			return netip.ParseAddrPort(net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)))
		}
	}
	return netip.AddrPort{}, fmt.Errorf("find %s address: none in %q", p, i.URLs)
}

// ICEServers requests ICE servers as a web app does. It also requests TURN over DTLS, which browsers do not support.
// Without gateways the auth service chooses them.
func (s *Stack) ICEServers(ctx context.Context, gateways ...string) (ice ICE, err error) {
	type reference struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	var wanted []reference
	for _, id := range gateways {
		namespace, name, _ := strings.Cut(id, "/")
		wanted = append(wanted, reference{namespace, name})
	}
	question, err := json.Marshal(struct {
		DTLS     bool        `json:"dtls"`
		Gateways []reference `json:"gateways,omitempty"`
	}{true, wanted})
	if err != nil {
		return ICE{}, fmt.Errorf("ask for ICE servers: %w", err)
	}
	req, err := http.NewRequestWithContext(
		ctx, http.MethodPost, s.AuthURL()+"/v1/ice-servers", bytes.NewReader(question),
	)
	if err != nil {
		return ICE{}, fmt.Errorf("ask for ICE servers: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	code, body, err := Do(req)
	if err != nil {
		return ICE{}, fmt.Errorf("ask for ICE servers: %w", err)
	}
	if code != http.StatusCreated {
		return ICE{}, fmt.Errorf("ask for ICE servers: status %d: %s", code, body)
	}
	if err := json.Unmarshal(body, &ice); err != nil {
		return ICE{}, fmt.Errorf("ask for ICE servers: %w", err)
	}
	return ice, nil
}
