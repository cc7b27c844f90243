package bed

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
	interval = 20 * time.Millisecond // between two looks at a condition in another process
	moment   = 2 * time.Second       // for one HTTP request of somebody who will ask again
	patience = 20 * time.Second      // for one of somebody who will not
	maxBody  = 4 << 20
)

// Until looks again and again until cond holds or ctx ends. A nil error means that it holds, any other says what is missing.
// Conditions of other processes cannot be awaited otherwise.
func Until(ctx context.Context, cond func(context.Context) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var missing error
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if missing == nil || ctx.Err() == nil { // an error that the end of ctx has made says nothing
			missing = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("gave up: %w: %w", context.Cause(ctx), missing)
		}
	}
}

// Get fetches a URL and returns the status code and the body.
func Get(ctx context.Context, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("get %s: %w", url, err)
	}
	return Do(req)
}

// Do sends a request and returns the status code and the body. Whoever has set a deadline waits for a condition, and has time for another request
// when one is lost; to anybody else a busy machine is no failure.
func Do(req *http.Request) (int, []byte, error) {
	limit := patience
	if _, waits := req.Context().Deadline(); waits {
		limit = moment
	}
	ctx, cancel := context.WithTimeout(req.Context(), limit)
	defer cancel()
	res, err := http.DefaultClient.Do(req.WithContext(ctx))
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

// Answers is the condition that a URL answers with the status code.
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

// ErrNoMetric says that a metrics page does not have the metric.
var ErrNoMetric = errors.New("no such metric")

// Metric reads a metrics page and returns the sum of all series of the name.
func Metric(ctx context.Context, url, name string) (float64, error) {
	code, body, err := Get(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("read metric %s: %w", name, err)
	}
	if code != http.StatusOK {
		return 0, fmt.Errorf("read metric %s: %s answers %d", name, url, code)
	}
	return sum(string(body), name)
}

// sum adds up the series of a name in the text format of Prometheus.
func sum(page, name string) (total float64, err error) {
	found := false
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		series, value, ok := strings.Cut(lines.Text(), " ")
		if i := strings.LastIndex(lines.Text(), "} "); i >= 0 { // label values may hold spaces
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
