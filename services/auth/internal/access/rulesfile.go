package access

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

// Bounds of a policy file.
const (
	maxRules      = 1 << 20 // bytes
	maxIssuers    = 32
	maxAPIKeys    = 256
	maxHashes     = 2 // the hash of a key, and the hash of its replacement
	maxClaimRule  = 64
	maxPatterns   = 256
	maxAlgorithms = 16
	maxHosts      = 32
	maxClaims     = 32  // of a rule
	maxValues     = 256 // of a claim
	maxSeconds    = 366 * 24 * 60 * 60
	maxRate       = 1_000_000
)

// RulesVersion is the version of the policy file that this package reads.
const RulesVersion = "v1"

// The document of a policy file; docs/auth-policy.schema.json is its JSON schema.
type (
	document struct {
		Version string           `json:"version"`
		Issuers []issuerDocument `json:"issuers"`
		Keys    []keyDocument    `json:"keys"`
		Open    *grantDocument   `json:"open"`
	}
	issuerDocument struct {
		Issuer         string                    `json:"issuer"`
		Audience       string                    `json:"audience"`
		JWKSURL        string                    `json:"jwksURL"`
		JWKSFile       string                    `json:"jwksFile"`
		SecretFile     string                    `json:"secretFile"`
		Discovery      bool                      `json:"discovery"`
		JWKSHosts      []string                  `json:"jwksHosts"`
		CAFile         string                    `json:"caFile"`
		TokenFile      string                    `json:"tokenFile"`
		Algorithms     []string                  `json:"algorithms"`
		MaxAge         int64                     `json:"maxAge"`
		RequiredClaims map[string]yamlfile.OneOf `json:"requiredClaims"`
		grantDocument
		Rules []ruleDocument `json:"rules"`
	}
	ruleDocument struct {
		Claims map[string]yamlfile.OneOf `json:"claims"`
		grantDocument
	}
	keyDocument struct {
		Name    string    `json:"name"`
		Hashes  []string  `json:"hashes"`
		Expires time.Time `json:"expires"`
		grantDocument
	}
	// grantDocument is the form of a Grant in the file.
	grantDocument struct {
		Gateways *[]string      `json:"gateways"`
		MaxTTL   *int64         `json:"maxTTL"`
		Rate     *rateDocument  `json:"rate"`
		User     *string        `json:"user"`
		Scope    *scopeDocument `json:"scope"`
		Revoke   *string        `json:"revoke"`
		Usage    *string        `json:"usage"`
	}
	// scopeDocument is credential.Caveats without the gateway, which each credential names itself.
	scopeDocument struct {
		Routes         *[]string `json:"routes"`
		Allocations    *int64    `json:"allocations"`
		BytesPerSecond *int64    `json:"bytesPerSecond"`
		Bytes          *int64    `json:"bytes"`
		NotBefore      *int64    `json:"notBefore"`
	}
	rateDocument struct {
		PerSecond float64 `json:"perSecond"`
		Burst     int64   `json:"burst"`
	}
)

// keyName matches the name of an API key. It is in logs, and in paths of the compatible APIs.
var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// ParseRules parses a policy file. Its errors name file, line and field.
func ParseRules(file string, raw []byte) (Rules, error) {
	var in document
	d := decoder{yamlfile.Decode(file, raw, maxRules, &in)}
	if d.OK() {
		d.check(in)
	}
	var out Rules
	if d.OK() {
		out = d.rules(in)
	}
	if !d.OK() {
		return Rules{}, d.Err()
	}
	return out, nil
}

// decoder converts a policy file to Rules.
type decoder struct{ *yamlfile.File }

// most checks the number of the entries of a field. Requests are compared with them.
func (d decoder) most(at string, n, most int) {
	if n > most {
		d.Wrong(at, "has %d entries: at most %d are allowed", n, most)
	}
}

// check checks the rules that concern the whole document.
func (d decoder) check(in document) {
	if in.Version != RulesVersion {
		d.Wrong("version", "must be %s", RulesVersion)
	}
	d.most("issuers", len(in.Issuers), maxIssuers)
	d.most("keys", len(in.Keys), maxAPIKeys)
	if len(in.Issuers)+len(in.Keys) == 0 && in.Open == nil {
		d.Wrong("", "accepts no caller: add issuers or keys, or open: {} for callers without credentials")
	}
}

func (d decoder) rules(in document) (out Rules) {
	issuers, names, hashes := map[string]bool{}, map[string]bool{}, map[Hash]bool{}
	for i, each := range in.Issuers {
		at := fmt.Sprintf("issuers[%d]", i)
		if each.Issuer != "" && issuers[each.Issuer] {
			d.Wrong(at+".issuer", "is there more than once: write one entry with rules")
		}
		issuers[each.Issuer] = true
		out.Issuers = append(out.Issuers, d.issuer(at, each))
	}
	for i, each := range in.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		key := d.key(at, each)
		if names[key.Name] {
			d.Wrong(at+".name", "is there more than once: write both hashes into one entry")
		}
		names[key.Name] = true
		for n, h := range key.Hashes {
			if hashes[h] {
				d.Wrong(fmt.Sprintf("%s.hashes[%d]", at, n), "is there more than once: a key belongs to one caller")
			}
			hashes[h] = true
		}
		out.Keys = append(out.Keys, key)
	}
	if in.Open != nil {
		open := d.grant("open", *in.Open, Grant{}, fieldUsername)
		for field, whose := range map[string]Whose{"revoke": open.Revoke, "usage": open.Usage} {
			if whose != Nobody {
				d.Wrong("open."+field, "is for callers with a token or a key: leave it out")
			}
		}
		out.Open = &open
	}
	return out
}

func (d decoder) issuer(at string, in issuerDocument) Issuer {
	out := Issuer{
		Config: Config{
			Issuer: in.Issuer, Audience: in.Audience, Algorithms: in.Algorithms, SecretFile: in.SecretFile,
			JWKSFile: in.JWKSFile, JWKSURL: in.JWKSURL, Discovery: in.Discovery, JWKSHosts: in.JWKSHosts,
			CAFile: in.CAFile, TokenFile: in.TokenFile, MaxAge: time.Duration(min(in.MaxAge, maxSeconds)) * time.Second,
			Required: d.claims(at+".requiredClaims", in.RequiredClaims),
		},
		Grant: d.grant(at, in.grantDocument, Grant{}, fieldSubject, fieldUsername, claimPrefix),
	}
	for _, e := range out.check("discovery, jwksURL, jwksFile or secretFile") {
		d.Wrong(strings.TrimSuffix(at+"."+e.field, "."), "%s", e.text)
	}
	online := in.Discovery || in.JWKSURL != ""
	if len(in.JWKSHosts) > 0 && !in.Discovery {
		d.Wrong(at+".jwksHosts", "has no effect without discovery: leave it out")
	}
	for field, value := range map[string]string{"caFile": in.CAFile, "tokenFile": in.TokenFile} {
		if value != "" && !online {
			d.Wrong(at+"."+field, "has no effect on a file: leave it out, or use discovery or jwksURL")
		}
	}
	d.most(at+".rules", len(in.Rules), maxClaimRule)
	d.most(at+".algorithms", len(in.Algorithms), maxAlgorithms)
	d.most(at+".jwksHosts", len(in.JWKSHosts), maxHosts)
	for i, each := range in.Rules {
		at := fmt.Sprintf("%s.rules[%d]", at, i)
		if len(each.Claims) == 0 {
			d.Wrong(at+".claims", "is missing: a rule without claims would match every token")
		}
		out.Rules = append(out.Rules, Rule{
			Claims: d.claims(at+".claims", each.Claims),
			Grant:  d.grant(at, each.grantDocument, out.Grant, fieldSubject, fieldUsername, claimPrefix),
		})
	}
	return out
}

func (d decoder) claims(at string, in map[string]yamlfile.OneOf) Claims {
	d.most(at, len(in), maxClaims)
	out := Claims{}
	for name, values := range in {
		d.most(at+"."+name, len(values), maxValues)
		out[name] = values
	}
	return out
}

func (d decoder) key(at string, in keyDocument) APIKey {
	grant := d.grant(at, in.grantDocument, Grant{}, fieldName, fieldUsername)
	out := APIKey{Name: in.Name, Expires: in.Expires, Grant: grant}
	if !keyName.MatchString(in.Name) {
		d.Wrong(at+".name", "must have 1 to 63 of the characters A-Z, a-z, 0-9, dot, hyphen and underscore")
	}
	if n := len(in.Hashes); n < 1 || n > maxHashes {
		d.Wrong(at+".hashes", "must have 1 to %d entries", maxHashes)
	}
	for i, text := range in.Hashes {
		hash, err := parseHash(text)
		if err != nil {
			d.Wrong(fmt.Sprintf("%s.hashes[%d]", at, i), "%v", err)
		}
		out.Hashes = append(out.Hashes, hash)
	}
	return out
}

// grant returns a Grant. Fields that are missing in the document have the values of the outer Grant. fields are the
// fields that its template may use.
func (d decoder) grant(at string, in grantDocument, outer Grant, fields ...string) Grant {
	out := outer
	if in.Gateways != nil {
		d.most(at+".gateways", len(*in.Gateways), maxPatterns)
		var err error
		if out.Gateways, err = ParseGateways(*in.Gateways); err != nil {
			d.Wrong(at+".gateways", "%v", err)
		}
	}
	if in.MaxTTL != nil {
		if *in.MaxTTL < 1 || *in.MaxTTL > maxSeconds {
			d.Wrong(at+".maxTTL", "%d is out of range: use 1 to %d seconds", *in.MaxTTL, maxSeconds)
		}
		out.MaxTTL = time.Duration(min(*in.MaxTTL, maxSeconds)) * time.Second
	}
	if in.Rate != nil {
		if !(in.Rate.PerSecond > 0) || in.Rate.PerSecond > maxRate {
			d.Wrong(at+".rate.perSecond", "%g is out of range: use more than 0, up to %d", in.Rate.PerSecond, maxRate)
		}
		if in.Rate.Burst < 1 || in.Rate.Burst > maxRate {
			d.Wrong(at+".rate.burst", "%d is out of range: use 1 to %d", in.Rate.Burst, maxRate)
		}
		out.Rate = Rate{PerSecond: in.Rate.PerSecond, Burst: int(in.Rate.Burst)}
	}
	if in.User != nil {
		var err error
		if out.User, err = parseTemplate(*in.User, fields...); err != nil {
			d.Wrong(at+".user", "%v", err)
		}
	}
	if in.Scope != nil {
		out.Scope = d.scope(at+".scope", *in.Scope)
	}
	out.Revoke, out.Usage = d.whose(at+".revoke", in.Revoke, outer.Revoke), d.whose(at+".usage", in.Usage, outer.Usage)
	return out
}

func (d decoder) whose(at string, in *string, outer Whose) Whose {
	if in == nil {
		return outer
	}
	whose := Whose(*in)
	if whose != Own && whose != Anybody {
		d.Wrong(at, "must be own or any, or be left out")
	}
	return whose
}

// scope returns the caveats of a scope. A scope without any limit, and a field without a limit, are errors, because its
// author must have intended a limit.
func (d decoder) scope(at string, in scopeDocument) (c credential.Caveats) {
	if in == (scopeDocument{}) {
		d.Wrong(at, "has no limit: leave it out")
	}
	if in.Routes != nil {
		if c.Routes = *in.Routes; len(c.Routes) == 0 {
			d.Wrong(at+".routes", "must have an entry, or be left out")
		}
	}
	for _, limit := range []struct {
		field string
		in    *int64
		out   *int64
	}{
		{"allocations", in.Allocations, &c.Allocations}, {"bytesPerSecond", in.BytesPerSecond, &c.BytesPerSecond},
		{"bytes", in.Bytes, &c.Bytes}, {"notBefore", in.NotBefore, &c.NotBefore},
	} {
		if limit.in == nil {
			continue
		}
		if *limit.out = *limit.in; *limit.in < 1 {
			d.Wrong(at+"."+limit.field, "must be at least 1, or be left out")
		}
	}
	var wrong *credential.FieldError
	if err := c.Validate(); errors.As(err, &wrong) {
		d.Wrong(at+"."+wrong.Field, "%s", wrong.Problem)
	}
	return c
}
