package env

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// UserID returns the user id of a user in the product. With static credentials, all clients are one user.
func (e *Env) UserID(user string) string {
	if e.Shape[Credentials] == Static {
		return e.user
	}
	return user
}

// Revoke revokes the credentials of a user as the platform, and returns the ID of the revocation.
func (e *Env) Revoke(ctx context.Context, user string) (id string, err error) {
	var made struct {
		ID string `json:"id"`
	}
	_, err = e.askAuth(ctx, http.MethodPost, "/v1/revocations", platformKey, map[string]string{"user": user}, &made)
	return made.ID, err
}

// Lift lifts a revocation.
func (e *Env) Lift(ctx context.Context, id string) error {
	_, err := e.askAuth(ctx, http.MethodDelete, "/v1/revocations/"+id, platformKey, nil, nil)
	return err
}

// Revocations returns the IDs of the revocations that the platform could lift.
func (e *Env) Revocations(ctx context.Context) (ids []string, err error) {
	var list struct {
		Revocations []struct {
			ID string `json:"id"`
		} `json:"revocations"`
	}
	_, err = e.askAuth(ctx, http.MethodGet, "/v1/revocations", platformKey, nil, &list)
	for _, r := range list.Revocations {
		ids = append(ids, r.ID)
	}
	return ids, err
}

// Count is a number of datagrams and the bytes of their payload.
type Count struct {
	Bytes   int `json:"bytes"`
	Packets int `json:"packets"`
}

// Usage is the usage of a user in the answer of the auth service.
type Usage struct {
	Total struct {
		Sessions int   `json:"sessions"`
		Sent     Count `json:"sent"`
		Received Count `json:"received"`
	} `json:"total"`
	PodsAsked    int  `json:"podsAsked"`
	PodsAnswered int  `json:"podsAnswered"`
	Complete     bool `json:"complete"`
}

// Usage requests the usage of a user in the last hour, with the API key of the platform.
func (e *Env) Usage(ctx context.Context, user string) (u Usage, err error) {
	query := url.Values{"user": {e.UserID(user)}}
	_, err = e.askAuth(ctx, http.MethodGet, "/v1/usage?"+query.Encode(), platformKey, nil, &u)
	return u, err
}

// Route returns the route of the listener, NAMESPACE/NAME.
func (l *Listener) Route() string { return l.Gateway.ID() + "-" + l.route }

// AddRoute adds a route to all listeners. The route allows the unrouted peer and the media servers of the other routes
// of the Gateway.
func (e *Env) AddRoute(ctx context.Context) error {
	return e.applyEach(ctx, func(g *Gateway) (texts []string) {
		peers := []topology.Both[netip.Addr]{e.Net.Peer(unroutedPeer)}
		for _, name := range g.routes() {
			peers = append(peers, e.Net.Peer(g.peerNumber(name)))
		}
		return []string{g.backendYAML(extraRoute, peers...), g.routeYAML(extraRoute)}
	})
}

// EmptyRoutes removes the media servers from all routes except the route of AddRoute. FillRoutes adds them again.
func (e *Env) EmptyRoutes(ctx context.Context) error {
	return e.applyEach(ctx, func(g *Gateway) (texts []string) {
		for _, name := range g.routes() {
			texts = append(texts, g.backendYAML(name, e.input.ctlPeer()))
		}
		return texts
	})
}

// FillRoutes undoes EmptyRoutes.
func (e *Env) FillRoutes(ctx context.Context) error {
	return e.applyEach(ctx, func(g *Gateway) (texts []string) {
		for _, name := range g.routes() {
			texts = append(texts, g.routeBackendYAML(name))
		}
		return texts
	})
}

// RemoveRoute undoes AddRoute.
func (e *Env) RemoveRoute(ctx context.Context) (err error) {
	for _, g := range e.Gateways {
		name := g.Name + "-" + extraRoute
		objects := []string{"udproute/" + name, "service/" + name}
		for _, a := range e.families(e.Net.Peer(unroutedPeer)) {
			objects = append(objects, "endpointslice/"+name+"-"+strings.ToLower(addressType(a)))
		}
		for _, o := range objects {
			err = errors.Join(err, e.input.remove(ctx, g.Namespace, o))
		}
	}
	return err
}

// applyEach writes objects of each Gateway.
func (e *Env) applyEach(ctx context.Context, of func(*Gateway) []string) error {
	for _, g := range e.Gateways {
		for _, text := range of(g) {
			if err := e.input.apply(ctx, g.Namespace, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// SendFrom sends a datagram from a media server.
func (e *Env) SendFrom(peer, to netip.AddrPort, data string) error {
	for _, c := range e.peers.conns {
		if c.LocalAddr().String() == peer.String() {
			_, err := c.WriteToUDPAddrPort([]byte(data), to)
			return err
		}
	}
	return fmt.Errorf("send from %s: no media server has this address", peer)
}
