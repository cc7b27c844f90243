// Package iceservers requests ICE servers of the STUNner auth service, and renews them before their credentials expire.
// A Client makes one request, and repeats it if the service is busy or away. A Source holds servers that never expire,
// for a program that runs longer than a credential.
//
// # Files
//
//	contract.go  the types of openapi/auth.yaml
//	request.go   one request, and its answer
//	retry.go     when a request is repeated
//	source.go    renewal
package iceservers

import (
	"context"
	"net/http"
	"time"
)

// DefaultTimeout is the longest time of one request, unless the Client has another.
const DefaultTimeout = 10 * time.Second

// Client requests ICE servers.
type Client struct {
	// URL is that of POST /v1/ice-servers, such as https://example.org/v1/ice-servers.
	URL string
	// Token returns the bearer token: a JSON Web Token or an API key. It is called before each request. Without it,
	// requests have no token.
	Token func(context.Context) (string, error)
	// Request is the body of requests. With its zero value the service chooses the gateways and the lifetime.
	Request Request
	// Timeout is the longest time of one request; DefaultTimeout if it is 0.
	Timeout time.Duration
	// HTTP sends the requests; http.DefaultClient if it is nil.
	HTTP *http.Client
}

// StaticToken returns a function for Client.Token that always returns the same token, such as an API key.
func StaticToken(token Secret) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return string(token), nil }
}

// ICEServers requests ICE servers, at most five times if the service does not answer or asks to wait. The error is an
// *Error unless the context has ended.
func (c *Client) ICEServers(ctx context.Context) (*ICEServers, error) {
	for failures := 1; ; failures++ {
		a, err := c.request(ctx)
		if err == nil {
			return a.servers, nil
		}
		if !temporary(err) || failures == mostFailures {
			return nil, err
		}
		if err := sleep(ctx, backoff(err, failures)); err != nil {
			return nil, err
		}
	}
}
