package boards

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Prometheus is a client of the Prometheus HTTP API.
type Prometheus struct{ URL string }

// Ask requests /api/v1/WHAT and decodes the data of the response into a value. The parameters are pairs of name and
// value.
func (p Prometheus) Ask(ctx context.Context, what string, into any, parameters ...string) error {
	query := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		query.Add(parameters[i], parameters[i+1])
	}
	code, body, err := harness.Get(ctx, p.URL+"/api/v1/"+what+"?"+query.Encode())
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

// Rule is an alerting rule with its state.
type Rule struct{ Name, State, Health, LastError string }

// Rules returns the alerting rules. It is an error if Prometheus has not evaluated one of them yet.
func (p Prometheus) Rules(ctx context.Context) (all []Rule, err error) {
	var answer struct {
		Groups []struct{ Rules []Rule } `json:"groups"`
	}
	if err := p.Ask(ctx, "rules", &answer); err != nil {
		return nil, err
	}
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			if r.Health == "unknown" {
				return nil, fmt.Errorf("%s has not been evaluated yet", r.Name)
			}
		}
		all = append(all, g.Rules...)
	}
	return all, nil
}

// Results returns the number of series in the result of an instant query.
func (p Prometheus) Results(ctx context.Context, expr string) (int, error) {
	var data struct {
		Result []json.RawMessage `json:"result"`
	}
	err := p.Ask(ctx, "query", &data, "query", expr)
	return len(data.Result), err
}
