package rest

import (
	"bytes"
	"context"
	"crypto/rand"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	strict "sigs.k8s.io/json"

	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// Paths of the answers in the forms of other services.
const (
	cloudflarePath = "/compat/cloudflare/"
	twilioPath     = "/compat/twilio/"
)

// segment matches a path parameter.
var segment = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// maxSTUN is the number of stun: URLs in an answer for all gateways: browsers ask each of them.
const maxSTUN = 2

// CreateCloudflareIceServers answers POST …/credentials/generate-ice-servers.
func (s server) CreateCloudflareIceServers(
	ctx context.Context, r CreateCloudflareIceServersRequestObject,
) (CreateCloudflareIceServersResponseObject, error) {
	body := deref(r.Body)
	grants, err := s.cloudflare(ctx, r.KeyID, body.TTL, body.CustomIdentifier)
	if err != nil {
		return nil, err
	}
	var servers []IceServer
	if stun := stunURLs(grants); len(stun) > 0 {
		servers = append(servers, IceServer{Urls: stun})
	}
	for _, one := range iceServers(grants) {
		if one.Username != nil {
			servers = append(servers, one)
		}
	}
	return CreateCloudflareIceServers201JSONResponse{IceServers: servers}, nil
}

// CreateCloudflareCredentials answers POST …/credentials/generate.
func (s server) CreateCloudflareCredentials(
	ctx context.Context, r CreateCloudflareCredentialsRequestObject,
) (CreateCloudflareCredentialsResponseObject, error) {
	body := deref(r.Body)
	grants, err := s.cloudflare(ctx, r.KeyID, body.TTL, body.CustomIdentifier)
	if err != nil {
		return nil, err
	}
	g, err := firstRelay(grants)
	if err != nil {
		return nil, err
	}
	one := iceServers([]grant{g})[0]
	one.Urls = slices.Concat(stunURLs([]grant{g}), one.Urls)
	return CreateCloudflareCredentials201JSONResponse{IceServers: one}, nil
}

func (s server) cloudflare(ctx context.Context, key string, ttl *int64, user *string) ([]grant, error) {
	if !segment.MatchString(key) {
		return nil, bad("keyId", "must have 1 to 64 of the characters A-Z, a-z, 0-9, dot, hyphen and underscore")
	}
	if who := identityOf(ctx); who.Key != "" && who.Key != key {
		return nil, fail(apiKeyMismatch)
	}
	if err := checkTTL(ttl); err != nil {
		return nil, err
	}
	id, err := userIDFor(identityOf(ctx), "customIdentifier", user, rand.Text)
	if err != nil {
		return nil, err
	}
	return s.grant(ctx, credentialRequest{userID: id, ttl: seconds(ttl), view: s.compatView(), stun: true})
}

// CreateTwilioToken answers POST …/Tokens.json.
func (s server) CreateTwilioToken(
	ctx context.Context, r CreateTwilioTokenRequestObject,
) (CreateTwilioTokenResponseObject, error) {
	if !segment.MatchString(r.AccountSid) {
		return nil, bad("accountSid", "must have 1 to 64 of the characters A-Z, a-z, 0-9, dot, hyphen and underscore")
	}
	ttl := deref(r.Body).TTL
	if err := checkTTL(ttl); err != nil {
		return nil, err
	}
	id, err := userIDFor(identityOf(ctx), "username", nil, rand.Text)
	if err != nil {
		return nil, err
	}
	grants, err := s.grant(ctx, credentialRequest{
		userID: id, ttl: seconds(ttl), view: s.compatView(), stun: true, clampTTL: true,
	})
	if err != nil {
		return nil, err
	}
	first, err := firstRelay(grants)
	if err != nil {
		return nil, err
	}
	at := s.Now().UTC().Format(time.RFC1123Z)
	out := TwilioToken{
		Username: first.credential.Username, Password: string(first.credential.Password), AccountSid: r.AccountSid,
		DateCreated: at, DateUpdated: at,
	}
	for _, url := range stunURLs(grants) {
		out.IceServers = append(out.IceServers, TwilioServer{URL: url, Urls: url})
	}
	shortest := first.ttl
	for _, g := range grants {
		if g.stunOnly {
			continue
		}
		shortest = min(shortest, g.ttl)
		for _, url := range g.urls {
			out.IceServers = append(out.IceServers, TwilioServer{
				URL: url, Urls: url, Username: &g.credential.Username, Credential: new(string(g.credential.Password)),
			})
		}
	}
	out.TTL = strconv.FormatInt(int64(shortest/time.Second), 10)
	return CreateTwilioToken201JSONResponse(out), nil
}

// compatView returns the URL options for clients of other services. These clients are browsers, which do not support
// TURN over DTLS.
func (s server) compatView() gateway.URLOptions {
	return gateway.URLOptions{Host: s.PublicAddr, Max: s.MaxURLs, Limit: true}
}

func firstRelay(grants []grant) (grant, error) {
	i := slices.IndexFunc(grants, func(g grant) bool { return !g.stunOnly })
	if i < 0 {
		return grant{}, fail(noRelay)
	}
	return grants[i], nil
}

// stunURLs returns the first stun: URLs of the gateways, at most maxSTUN.
func stunURLs(grants []grant) (urls []string) {
	for _, g := range grants {
		for _, url := range g.stunURLs {
			if len(urls) < maxSTUN && !slices.Contains(urls, url) {
				urls = append(urls, url)
			}
		}
	}
	return urls
}

// compatHeaders returns the headers that identify the caller. Clients of Twilio send HTTP Basic, with an API key as
// password. name is the user of HTTP Basic.
func compatHeaders(r *http.Request) (h http.Header, name string) {
	if strings.HasPrefix(r.URL.Path, twilioPath) && len(r.Header.Values("Authorization")) == 1 {
		if user, password, ok := r.BasicAuth(); ok {
			return http.Header{"Authorization": {"Bearer " + password}}, user
		}
	}
	return r.Header, ""
}

// checkForm refuses a body that is not a form with at most one Ttl, which must be a number. The generated binding would
// not name the field.
func checkForm(r *http.Request, body []byte) *failure {
	if len(body) == 0 {
		return nil
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil ||
		media != "application/x-www-form-urlencoded" {
		return fail(bodyNotForm)
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return refuse(bodyUnreadable, "body", "is not percent-encoded as it must be")
	}
	for name, all := range values {
		if len(all) > 1 {
			return refuse(parameterRepeated, name, doubled)
		}
	}
	if !values.Has("Ttl") {
		return nil
	}
	if _, err := strconv.ParseInt(values.Get("Ttl"), 10, 64); err != nil {
		return bad("Ttl", notTTL)
	}
	return nil
}

// checkRepeated refuses a JSON body with a repeated field. Unknown fields are ignored, because clients send the fields
// of the other service.
func checkRepeated(body []byte) *failure {
	if len(body) == 0 {
		return nil
	}
	if bytes.Equal(bytes.TrimSpace(body), null) {
		return bad("body", "is null: leave it out, or send an object")
	}
	var all map[string]any
	if twice, err := strict.UnmarshalStrict(body, &all, strict.DisallowDuplicateFields); err == nil && len(twice) > 0 {
		return refuse(parameterRepeated, "body", "has a field more than once")
	}
	return nil
}
