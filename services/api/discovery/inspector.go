package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// inspectLimit is the maximum length of an answer of the inspection API that a client reads.
const inspectLimit = 2 << 20

// Inspector is a Source whose server also serves the inspection API, at the same address and with the same token.
type Inspector interface {
	// Inspect returns what the dataplanes of a Gateway answer to a GET request for a path, such as usage. The error is
	// an InspectError if the server refuses the request.
	Inspect(ctx context.Context, id, path string, query url.Values) (inspection.List, error)
}

// InspectError is a refusal of the inspection API.
type InspectError struct {
	// Status is the HTTP status code.
	Status int
	// Known is false if the answer does not come from the inspection API, because the server is of an earlier release.
	Known bool
}

// Error implements error.
func (e *InspectError) Error() string {
	if !e.Known {
		return fmt.Sprintf("status %d: the server has no such path: update the operator", e.Status)
	}
	return fmt.Sprintf("status %d", e.Status)
}

// Inspect implements Inspector.
func (c *client) Inspect(ctx context.Context, id, path string, query url.Values) (list inspection.List, err error) {
	data, err := c.inspect(ctx, id, path, query)
	if err == nil && json.Unmarshal(data, &list) != nil {
		err = errors.New("the answer has another form than this release expects")
	}
	if err != nil {
		return inspection.List{}, fmt.Errorf("inspect %s of %s at %s: %w", path, id, c, err)
	}
	return list, nil
}

func (c *client) inspect(ctx context.Context, id, path string, query url.Values) ([]byte, error) {
	at := c.base
	at.Path = strings.TrimSuffix(at.Path, apiPath)
	u := at.JoinPath("api/v1/gateways", id, path)
	u.RawQuery = query.Encode()
	httpClient, header, err := c.prepare()
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	// The server answers when all pods have answered. This may take longer than dialTimeout.
	if transport, ok := httpClient.Transport.(*http.Transport); ok {
		transport.ResponseHeaderTimeout = 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := httpClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := readLimited(response.Body, inspectLimit)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var known struct{ Code int }
		err := json.Unmarshal(data, &known)
		return nil, &InspectError{Status: response.StatusCode, Known: err == nil && known.Code == response.StatusCode}
	}
	return data, nil
}
