package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// prometheus is the HTTP API of one.
type prometheus struct{ url string }

// ask reads the data of an answer into a value. The arguments are names and values of parameters.
func (p prometheus) ask(ctx context.Context, what string, into any, parameters ...string) error {
	query := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		query.Add(parameters[i], parameters[i+1])
	}
	code, body, err := bed.Get(ctx, p.url+"/api/v1/"+what+"?"+query.Encode())
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("ask Prometheus for %s: status %d: %s", what, code, body)
	}
	answer := struct {
		Data any `json:"data"`
	}{into}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("ask Prometheus for %s: %w", what, err)
	}
	return nil
}

func (p prometheus) get(t *testing.T, what string, into any, parameters ...string) {
	t.Helper()
	if err := p.ask(t.Context(), what, into, parameters...); err != nil {
		t.Fatal(err)
	}
}

// results is how many series a query has now.
func (p prometheus) results(ctx context.Context, expr string) (int, error) {
	var data struct {
		Result []json.RawMessage `json:"result"`
	}
	err := p.ask(ctx, "query", &data, "query", expr)
	return len(data.Result), err
}
