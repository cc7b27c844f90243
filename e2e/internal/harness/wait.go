package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	shortest = 10 * time.Millisecond  // between the first two checks of a condition
	longest  = 200 * time.Millisecond // between two later checks
	moment   = 2 * time.Second        // for an HTTP request whose context has a deadline, and which is retried
	timeout  = 20 * time.Second       // for any other HTTP request
	maxBody  = 4 << 20
)

// final wraps the error of a condition that can no longer become true.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks the error of a condition that can no longer become true. Until returns such an error at once.
func Final(err error) error { return final{err} }

// Until polls cond until it returns nil or ctx ends. The error of cond names the part of the condition that is not true
// yet. The interval grows by a fifth with each check, so that a long wait leaves CPU time to the program under test.
func Until(ctx context.Context, cond func(context.Context) error) error {
	var missing error
	interval := shortest
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, new(final)) {
			return err
		}
		if missing == nil || ctx.Err() == nil { // an error caused by the end of ctx does not describe the condition
			missing = err
		}
		select {
		case <-time.After(interval):
			interval = min(interval*6/5, longest)
		case <-ctx.Done():
			return fmt.Errorf("gave up: %w: %w", context.Cause(ctx), missing)
		}
	}
}

// Get fetches a URL and returns the status code and the body.
func Get(ctx context.Context, url string) (int, []byte, error) {
	return GetBy(ctx, http.DefaultClient, url)
}

// GetBy is Get with a client.
func GetBy(ctx context.Context, client *http.Client, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("get %s: %w", url, err)
	}
	return do(client, req)
}

// Do sends a request and returns the status code and the body. A context with a deadline means that the caller polls.
// Then the request times out after moment, so that the caller can retry it. Otherwise the request times out after
// timeout, which is long enough for a busy machine.
func Do(req *http.Request) (int, []byte, error) { return do(http.DefaultClient, req) }

// DoBy is Do with a client.
func DoBy(client *http.Client, req *http.Request) (int, []byte, error) { return do(client, req) }

func do(client *http.Client, req *http.Request) (int, []byte, error) {
	limit := timeout
	if _, waits := req.Context().Deadline(); waits {
		limit = moment
	}
	ctx, cancel := context.WithTimeout(req.Context(), limit)
	defer cancel()
	res, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: read body: %w", req.Method, req.URL, err)
	}
	return res.StatusCode, body, nil
}

// Answers returns a condition that is true when a GET of the URL returns the status code.
func Answers(url string, want int) func(context.Context) error {
	return func(ctx context.Context) error {
		got, body, err := Get(ctx, url)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("get %s: status %d, want %d: %s", url, got, want, body)
		}
		return nil
	}
}

// ErrNoMetric reports that a metrics page does not contain the metric.
var ErrNoMetric = errors.New("no such metric")

// Metric reads a metrics page and returns the sum of all series of a metric.
func Metric(ctx context.Context, url, name string) (float64, error) {
	code, body, err := Get(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("read metric %s: %w", name, err)
	}
	if code != http.StatusOK {
		return 0, fmt.Errorf("read metric %s: %s: status %d", name, url, code)
	}
	return Sum(string(body), name)
}

// Sum adds the series of a metric in the Prometheus text format.
func Sum(page, name string) (total float64, err error) {
	found := false
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		series, value, ok := strings.Cut(lines.Text(), " ")
		if i := strings.LastIndex(lines.Text(), "} "); i >= 0 { // label values may contain spaces
			series, value, ok = lines.Text()[:i+1], lines.Text()[i+2:], true
		}
		if base, _, _ := strings.Cut(series, "{"); !ok || base != name {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("read metric %s: %w", name, err)
		}
		total, found = total+v, true
	}
	if !found {
		return 0, fmt.Errorf("read metric %s: %w", name, ErrNoMetric)
	}
	return total, nil
}
