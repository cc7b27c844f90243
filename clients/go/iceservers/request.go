package iceservers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Error is why there are no ICE servers.
type Error struct {
	// Status is the HTTP status of the answer; 0 if there was none.
	Status int
	// Reason is the reason in a word: that of the service, such as token_expired, or else unreachable, timeout,
	// answer_invalid, option_invalid or token_failed, which the client finds itself.
	Reason string
	// Parameters are those that the service refuses.
	Parameters []ParameterError
	// RetryAfter is how long the service asks to wait; 0 unless the answer says so.
	RetryAfter time.Duration

	message string
	cause   error
}

func (e *Error) Error() string { return "request ICE servers: " + e.message }

// Unwrap returns the error of the network or of Client.Token.
func (e *Error) Unwrap() error { return e.cause }

// Temporary reports whether the same request may succeed later.
func (e *Error) Temporary() bool {
	switch e.Reason {
	case reasonUnreachable, reasonTimeout, reasonToken:
		return true
	}
	return e.Status >= 500 || e.Status == http.StatusRequestTimeout || e.Status == http.StatusTooEarly ||
		e.Status == http.StatusTooManyRequests
}

// Reasons that the client finds itself.
const (
	reasonUnreachable = "unreachable"
	reasonTimeout     = "timeout"
	reasonAnswer      = "answer_invalid"
	reasonOption      = "option_invalid"
	reasonToken       = "token_failed"
)

// Limits of an answer. 100 gateways with 5 URLs each need less than 100,000 bytes.
const (
	longestAnswer = 1 << 20
	mostServers   = 1000
	longestTTL    = 10 * 365 * 86_400 // seconds
)

// answer is an answer of the service.
type answer struct {
	servers *ICEServers
	// sent is when the request was sent. From then on, all credentials are valid for lifetime; 0 if none expires.
	sent     time.Time
	lifetime time.Duration
}

// request makes one request. Its error is an *Error unless the context has ended.
func (c *Client) request(ctx context.Context) (answer, error) {
	limit := cmp.Or(c.Timeout, DefaultTimeout)
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := c.exchange(attempt)
	switch {
	case err != nil && ctx.Err() != nil:
		return answer{}, context.Cause(ctx)
	case err != nil && attempt.Err() != nil:
		return answer{}, &Error{
			Reason: reasonTimeout, cause: err,
			message: fmt.Sprintf("POST %s: no answer within %s: is the service reachable from here?", c.URL, limit),
		}
	}
	return a, err
}

func (c *Client) exchange(ctx context.Context) (answer, error) {
	body, err := json.Marshal(c.Request)
	if err != nil {
		return answer{}, c.option("encode Request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return answer{}, c.option("URL is invalid: %w", err)
	}
	if r.URL.Host == "" {
		return answer{}, c.option("URL is %q: it must be absolute, such as https://example.org/v1/ice-servers", c.URL)
	}
	r.Header.Set("Content-Type", "application/json")
	if c.Token != nil {
		token, err := c.Token(ctx)
		if err != nil {
			return answer{}, &Error{Reason: reasonToken, cause: err, message: fmt.Sprintf("get token: %v", err)}
		}
		if !visible.MatchString(token) {
			return answer{}, c.option("token is empty or has characters that a header cannot have")
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	sent := time.Now()
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(r)
	if err != nil {
		return answer{}, c.unreachable(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer+1))
	if err != nil {
		return answer{}, c.unreachable(err)
	}
	if response.StatusCode/100 != 2 {
		return answer{}, c.refusal(response, text)
	}
	return c.parse(sent, response.Header, text)
}

// visible are the characters of a token.
var visible = regexp.MustCompile(`^[\x21-\x7e]+$`)

func (c *Client) option(format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Reason: reasonOption, message: err.Error(), cause: errors.Unwrap(err)}
}

// unreachable is the error of a request without an answer. That of net/http names the method and the URL.
func (c *Client) unreachable(err error) *Error {
	return &Error{
		Reason: reasonUnreachable, cause: err, message: fmt.Sprintf("%v: is the service reachable from here?", err),
	}
}

func (c *Client) broken(format string, args ...any) *Error {
	return &Error{
		Reason:  reasonAnswer,
		message: fmt.Sprintf("POST %s: %s: is URL that of POST /v1/ice-servers?", c.URL, fmt.Sprintf(format, args...)),
	}
}

func (c *Client) refusal(r *http.Response, text []byte) *Error {
	var p problem
	_ = json.Unmarshal(text, &p) // a proxy answers with HTML
	var details []string
	for _, e := range p.Errors {
		details = append(details, e.Parameter+" "+e.Message)
	}
	reason := cmp.Or(p.Reason, "status") // a proxy sends no reason
	return &Error{
		Status: r.StatusCode, Reason: reason, Parameters: p.Errors, RetryAfter: retryAfter(r.Header),
		message: fmt.Sprintf("POST %s: %d %s: %s", c.URL, r.StatusCode, reason,
			cmp.Or(strings.Join(details, "; "), p.Detail, http.StatusText(r.StatusCode))),
	}
}

// retryAfter reads the header Retry-After (RFC 9110 §10.2.3). A date in it is compared with that of the service,
// because the clock here may be wrong.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	now, nowErr := http.ParseTime(h.Get("Date"))
	if err != nil || nowErr != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

func (c *Client) parse(sent time.Time, h http.Header, text []byte) (answer, error) {
	if len(text) > longestAnswer {
		return answer{}, c.broken("the answer is longer than %d bytes", longestAnswer)
	}
	var s ICEServers
	if err := json.Unmarshal(text, &s); err != nil {
		return answer{}, c.broken("the answer is not that of the contract: %v", err)
	}
	if n := len(s.ICEServers); n == 0 || n > mostServers {
		return answer{}, c.broken("iceServers has %d servers, want 1 to %d", n, mostServers)
	}
	for i, server := range s.ICEServers {
		if err := server.check(); err != nil {
			return answer{}, c.broken("iceServers[%d]%v", i, err)
		}
	}
	if s.ICETransportPolicy != "all" && s.ICETransportPolicy != "relay" {
		return answer{}, c.broken("iceTransportPolicy is neither all nor relay")
	}
	a := answer{servers: &s, sent: sent}
	switch {
	case s.TTL != nil && (*s.TTL < 0 || *s.TTL > longestTTL):
		return answer{}, c.broken("ttl is %d, want 0 to %d seconds", *s.TTL, longestTTL)
	case s.TTL != nil:
		a.lifetime = time.Duration(*s.TTL) * time.Second
	case s.ExpiresAt == nil:
		return a, nil
	default:
		// The clock here may be wrong. A service that sends no ttl sends its time, in whole seconds.
		now, err := http.ParseTime(h.Get("Date"))
		if err != nil {
			return answer{}, c.broken("expiresAt is there, but neither ttl nor the header Date")
		}
		a.lifetime = s.ExpiresAt.Sub(now) - time.Second
	}
	if a.lifetime <= 0 {
		return answer{}, c.broken("the credentials expire at once")
	}
	return a, nil
}

var turnURL = regexp.MustCompile(`^(turns?|stuns?):`)

func (s ICEServer) check() error {
	if len(s.URLs) == 0 {
		return errors.New(".urls is empty")
	}
	for _, u := range s.URLs {
		if !turnURL.MatchString(u) {
			return errors.New(".urls has a URL that is neither of TURN nor of STUN")
		}
	}
	if (s.Username == "") != (s.Credential == "") {
		return errors.New(" needs username and credential, or neither")
	}
	return nil
}
