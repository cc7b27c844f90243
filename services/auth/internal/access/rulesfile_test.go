package access

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

const (
	hashA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// schema is docs/auth-policy.schema.json.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	s, err := compiler.Compile("../../../../docs/auth-policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The examples of the documentation are valid policies, for the decoder and for the JSON schema.
func TestExamplesOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/auth-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	var complete int
	for i, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(text, "version: v1\n") {
			text = "version: v1\n" + text
		} else {
			complete++
		}
		rules, err := ParseRules("policy.yaml", []byte(text))
		if err != nil || len(rules.Issuers)+len(rules.Keys) == 0 && rules.Open == nil {
			t.Errorf("example %d: %v\n%s", i, err, text)
		}
		conforms(t, schema(t), text, true)
	}
	if complete == 0 || len(blocks) < 3 {
		t.Errorf("%d examples, %d of them complete", len(blocks), complete)
	}
}

func conforms(t *testing.T, s *jsonschema.Schema, text string, want bool) {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		return // no JSON value
	}
	raw, err := json.Marshal(value) // json.Marshal writes times as strings
	if err != nil {
		return
	}
	if value, err = jsonschema.UnmarshalJSON(strings.NewReader(string(raw))); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(value); (err == nil) != want {
		t.Errorf("the schema says %v, want valid: %t\n%s", err, want, text)
	}
}

// A rule has the fields of its issuer that it does not replace. The issuer of the test has all fields.
func TestRulesInheritFieldsOfTheIssuer(t *testing.T) {
	policy, err := ParseRules("p.yaml", []byte(`version: v1
issuers:
- issuer: https://login.example.org
  audience: turn
  jwksFile: f
  gateways: [media/*]
  maxTTL: 60
  rate: {perSecond: 1, burst: 2}
  user: "{claim.name}"
  scope: {allocations: 3}
  revoke: own
  usage: any
  rules:
  - claims: {role: guest}
  - claims: {role: admin}
    revoke: any
    usage: own
`))
	if err != nil {
		t.Fatal(err)
	}
	issuer := policy.Issuers[0]
	for i := range reflect.TypeFor[Grant]().NumField() {
		if reflect.ValueOf(issuer.Grant).Field(i).IsZero() {
			t.Errorf("the issuer of the test has no %s", reflect.TypeFor[Grant]().Field(i).Name)
		}
	}
	if got := issuer.Rules[0].Grant; !reflect.DeepEqual(got, issuer.Grant) {
		t.Errorf("a rule without fields: %+v, want %+v", got, issuer.Grant)
	}
	want := issuer.Grant
	want.Revoke, want.Usage = Anybody, Own
	if got := issuer.Rules[1].Grant; !reflect.DeepEqual(got, want) {
		t.Errorf("a rule with two fields: %+v, want %+v", got, want)
	}
}

// Each error has file, line and field. The schema refuses the same files, except where a JSON schema cannot.
func TestErrorsOfPolicyFiles(t *testing.T) {
	issuer := func(fields string) string {
		return "version: v1\nissuers:\n- issuer: https://login.example.org\n  audience: turn\n" + fields
	}
	key := func(fields string) string {
		return "version: v1\nkeys:\n- name: shop\n  hashes: [" + hashA + "]\n" + fields
	}
	beyondSchema := []string{"two issuers", "two names", "one hash twice", "one hash of two keys", "an alias", "a duplicate",
		"two documents", "a merge", "a time as number", "plain http", "discovery by plain http", "a field of keys",
		"a brace alone", "an unknown field of users", "an algorithm of secrets", "CA of a file", "hosts without discovery"}
	for name, tt := range map[string]struct{ text, want string }{
		"empty":             {"", "p.yaml:1: is empty"},
		"only a comment":    {"# policy\n", "p.yaml:1: is empty"},
		"no version":        {"open: {}\n", "p.yaml:1: version: must be v1"},
		"another version":   {"\nversion: v2\nopen: {}\n", "p.yaml:2: version: must be v1"},
		"nobody":            {"version: v1\n", "p.yaml:1: accepts no caller"},
		"a list":            {"- a\n", "p.yaml:1: must be an object"},
		"no YAML":           {"version: v1\nopen: {\n", "p.yaml:2: is not YAML"},
		"two documents":     {"version: v1\nopen: {}\n---\nversion: v1\n", "p.yaml:3: has more than one YAML document"},
		"an unknown field":  {"version: v1\nopen: {}\nclosed: {}\n", "p.yaml:3: closed: is unknown: use issuers, keys, open, version"},
		"a field of case":   {"version: v1\nOpen: {}\n", "p.yaml:2: Open: is unknown"},
		"a duplicate":       {"version: v1\nopen: {}\nopen: {}\n", "p.yaml:3: open: is there more than once"},
		"an alias":          {"version: v1\nopen: &a {}\nkeys: *a\n", "p.yaml:2: open: has a YAML anchor or alias"},
		"a merge":           {"version: v1\nopen: {<<: {}}\n", "p.yaml:2: open: has a field whose name is no text"},
		"null":              {"version: v1\nopen:\n", "p.yaml:2: open: must be an object"},
		"an issuer of text": {"version: v1\nissuers: [x]\n", "p.yaml:2: issuers[0]: must be an object"},
		"no keys of tokens": {issuer(""), "p.yaml:3: issuers[0]: a key is missing: give discovery, jwksURL, jwksFile or secretFile"},
		"two sources":       {issuer("  discovery: true\n  jwksFile: f\n"), "p.yaml:3: issuers[0]: discovery, jwksURL, jwksFile and secretFile exclude"},
		"no audience":       {"version: v1\nissuers:\n- issuer: a\n  jwksFile: f\n", "p.yaml:3: issuers[0].audience: is missing"},
		"plain http":        {issuer("  jwksURL: http://login.example.org/keys\n"), "p.yaml:5: issuers[0].jwksURL: must be https"},
		"discovery by plain http": {"version: v1\nissuers:\n- issuer: http://login.example.org\n  audience: turn\n  discovery: true\n",
			"p.yaml:3: issuers[0].issuer: must be https"},
		"an algorithm of secrets": {issuer("  jwksFile: f\n  algorithms: [RS256, HS256]\n"), `p.yaml:6: issuers[0].algorithms: "HS256" does not fit`},
		"CA of a file":            {issuer("  jwksFile: f\n  caFile: f\n"), "p.yaml:6: issuers[0].caFile: has no effect"},
		"hosts without discovery": {issuer("  jwksFile: f\n  jwksHosts: [a]\n"), "p.yaml:6: issuers[0].jwksHosts: has no effect"},
		"two issuers": {issuer("  jwksFile: f\n- issuer: https://login.example.org\n  audience: a\n  jwksFile: f\n"),
			"p.yaml:6: issuers[1].issuer: is there more than once"},
		"a rule of all":     {issuer("  jwksFile: f\n  rules:\n  - gateways: []\n"), "p.yaml:7: issuers[0].rules[0].claims: is missing"},
		"a claim of null":   {issuer("  jwksFile: f\n  requiredClaims:\n    a: null\n"), "p.yaml:7: issuers[0].requiredClaims.a: must be a text"},
		"a claim of lists":  {issuer("  jwksFile: f\n  requiredClaims:\n    a: [[1]]\n"), "p.yaml:7: issuers[0].requiredClaims.a: must be a text"},
		"a claim of none":   {issuer("  jwksFile: f\n  requiredClaims:\n    a: []\n"), "p.yaml:7: issuers[0].requiredClaims.a: is an empty list"},
		"an age below 0":    {issuer("  jwksFile: f\n  maxAge: -1\n"), "p.yaml:6: issuers[0].maxAge: -1 is out of range"},
		"no name":           {"version: v1\nkeys:\n- hashes: [" + hashA + "]\n", "p.yaml:3: keys[0].name: must have 1 to 63"},
		"a name with paths": {"version: v1\nkeys:\n- name: ../x\n  hashes: [" + hashA + "]\n", "p.yaml:3: keys[0].name: must have 1 to 63"},
		"a key itself":      {"version: v1\nkeys:\n- name: shop\n  hashes:\n  - secret\n", "p.yaml:5: keys[0].hashes[0]: must be sha256:"},
		"an MD5 hash":       {"version: v1\nkeys:\n- name: shop\n  hashes: ['md5:" + hashA[7:] + "']\n", "p.yaml:4: keys[0].hashes[0]: must be sha256:"},
		"no hash":           {"version: v1\nkeys:\n- name: shop\n", "p.yaml:3: keys[0].hashes: must have 1 to 2"},
		"three hashes": {"version: v1\nkeys:\n- name: shop\n  hashes: [" + hashA + ", " + hashB + ", sha256:" + strings.Repeat("c", 64) + "]\n",
			"p.yaml:4: keys[0].hashes: must have 1 to 2"},
		"one hash twice": {"version: v1\nkeys:\n- name: shop\n  hashes: [" + hashA + ", " + hashA + "]\n",
			"p.yaml:4: keys[0].hashes[1]: is there more than once"},
		"two names":                 {key("- name: shop\n  hashes: [" + hashB + "]\n"), "p.yaml:5: keys[1].name: is there more than once"},
		"one hash of two keys":      {key("- name: web\n  hashes: [" + hashA + "]\n"), "p.yaml:6: keys[1].hashes[0]: is there more than once"},
		"a time as number":          {key("  expires: 7\n"), "p.yaml:5: keys[0].expires: must be a time"},
		"a ttl of 0":                {key("  maxTTL: 0\n"), "p.yaml:5: keys[0].maxTTL: 0 is out of range"},
		"a ttl of text":             {key("  maxTTL: 1h\n"), "p.yaml:5: keys[0].maxTTL: must be an integer"},
		"a rate of infinity":        {key("  rate: {perSecond: .inf, burst: 1}\n"), "p.yaml:5: keys[0].rate.perSecond: +Inf is out of range"},
		"a rate of nothing":         {key("  rate: {perSecond: .nan, burst: 1}\n"), "p.yaml:5: keys[0].rate.perSecond: NaN is out of range"},
		"no burst":                  {key("  rate: {perSecond: 1}\n"), "p.yaml:5: keys[0].rate.burst: 0 is out of range"},
		"a gateway of no name":      {key("  gateways: [media]\n"), `p.yaml:5: keys[0].gateways: "media" is no pattern`},
		"gateways as text":          {key("  gateways: media/*\n"), "p.yaml:5: keys[0].gateways: must be a list"},
		"braces without quotes":     {key("  user: {name}\n"), "p.yaml:5: keys[0].user: must be a text: put it into quotation marks"},
		"a brace alone":             {key("  user: 'a}b'\n"), "p.yaml:5: keys[0].user: \"a}b\" has a brace without its pair"},
		"an unknown field of users": {key("  user: '{sub}'\n"), "p.yaml:5: keys[0].user: {sub} is unknown here: use {name}, {username}"},
		"a field of keys":           {issuer("  jwksFile: f\n  user: '{name}'\n"), "p.yaml:6: issuers[0].user: {name} is unknown here"},
		"a scope of nothing":        {key("  scope: {}\n"), "p.yaml:5: keys[0].scope: has no limit"},
		"no route":                  {key("  scope: {routes: []}\n"), "p.yaml:5: keys[0].scope.routes: must have an entry"},
		"a route of no namespace":   {key("  scope: {routes: [a]}\n"), "p.yaml:5: keys[0].scope.routes[0]: "},
		"a limit of 0":              {key("  scope: {bytes: 0}\n"), "p.yaml:5: keys[0].scope.bytes: must be at least 1"},
		"a scope of a gateway":      {key("  scope: {gateway: a/b}\n"), "p.yaml:5: keys[0].scope.gateway: is unknown"},
		"a revoker of others":       {key("  revoke: all\n"), "p.yaml:5: keys[0].revoke: must be own or any"},
		"usage of others":           {key("  usage: all\n"), "p.yaml:5: keys[0].usage: must be own or any"},
		"usage of nobody":           {key("  usage: ''\n"), "p.yaml:5: keys[0].usage: must be own or any"},
		"usage without credentials": {"version: v1\nopen:\n  usage: any\n", "p.yaml:3: open.usage: is for callers with a token or a key"},
		"an empty user":             {key("  user: ''\n"), "p.yaml:5: keys[0].user: must have 1 to 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseRules("p.yaml", []byte(tt.text))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), hashA[7:]) {
				t.Errorf("error %v has a hash", err)
			}
			if !slices.Contains(beyondSchema, name) {
				conforms(t, schema(t), tt.text, false)
			}
		})
	}
}

// Documents that would use up memory or time are refused at once.
func TestPolicyBombs(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("version: v1\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	for name, tt := range map[string]struct{ text, want string }{
		"aliases":       {laughs.String(), "is unknown"},
		"depth":         {"version: v1\nopen: " + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + "\n", "must be an object"},
		"deeper":        {"version: v1\nopen: " + strings.Repeat("[", 500_000) + "\n", "is not YAML"},
		"depth of maps": {"version: v1\nissuers: [{requiredClaims: " + strings.Repeat("{a: ", 5_000) + strings.Repeat("}", 5_000) + "}]\n", "must be a text"},
		"size":          {"version: v1\nopen: {}\n#" + strings.Repeat("x", maxRules), "p.yaml:1: is larger than 1048576 bytes"},
		"many errors":   {"version: v1\nopen: {}\n" + strings.Repeat("x: 1\n", 100_000), "and 99980 more"},
		"many keys":     {"version: v1\nkeys:\n" + strings.Repeat("- name: a\n", 300), "p.yaml:3: keys: has 300 entries: at most 256"},
		"many issuers":  {"version: v1\nissuers:\n" + strings.Repeat("- issuer: a\n", 40), "p.yaml:3: issuers: has 40 entries: at most 32"},
		"many patterns": {"version: v1\nopen:\n  gateways:\n" + strings.Repeat("  - '*/*'\n", 300), "p.yaml:4: open.gateways: has 300 entries: at most 256"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := ParseRules("p.yaml", []byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %.300v, want %s", err, tt.want)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// The schema has the fields of the decoder, and no others.
func TestSchemaHasTheFields(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/auth-policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Properties map[string]any `json:"properties"`
		Defs       map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]reflect.Type{
		"issuer": reflect.TypeFor[issuerDocument](), "rule": reflect.TypeFor[ruleDocument](),
		"key": reflect.TypeFor[keyDocument](), "grant": reflect.TypeFor[grantDocument](),
		"rate": reflect.TypeFor[rateDocument](), "scope": reflect.TypeFor[scopeDocument](), "": reflect.TypeFor[document](),
	} {
		properties := doc.Defs[name].Properties
		if name == "" {
			properties = doc.Properties
		}
		var got []string
		for property := range properties {
			got = append(got, property)
		}
		slices.Sort(got)
		if want := yamlfile.Fields(typ); !slices.Equal(got, want) {
			t.Errorf("%q of the schema has the fields %v, want %v", name, got, want)
		}
	}
}

// The flags of an issuer are the same policy as a file with one issuer.
func TestFlagsAreThePolicyOfOneIssuer(t *testing.T) {
	flags := Config{Issuer: "https://login.example.org", Audience: "turn", JWKSFile: "keys.json", MaxAge: time.Minute,
		Algorithms: []string{"RS256"}}.Rules()
	file, err := ParseRules("p.yaml", []byte("version: v1\nissuers:\n- issuer: https://login.example.org\n  audience: turn\n"+
		"  jwksFile: keys.json\n  maxAge: 60\n  algorithms: [RS256]\n"))
	if err != nil {
		t.Fatal(err)
	}
	file.Issuers[0].Required = nil
	if !reflect.DeepEqual(flags, file) {
		t.Errorf("flags %+v, file %+v", flags, file)
	}
	open, err := ParseRules("p.yaml", []byte("version: v1\nopen: {}\n"))
	if err != nil || !reflect.DeepEqual(open, Config{}.Rules()) {
		t.Errorf("file %+v, %v, no flags %+v", open, err, Config{}.Rules())
	}
}

// F-13: no policy file causes a panic, an accepted policy has a caller, and errors have a line.
func FuzzPolicyFile(f *testing.F) {
	for _, seed := range []string{
		"version: v1\nopen: {}\n", "version: v1\nkeys:\n- {name: a, hashes: [" + hashA + "], user: '{name}'}\n",
		"version: v1\nissuers:\n- {issuer: a, audience: b, jwksFile: c, rules: [{claims: {a: [1, x, true]}}]}\n",
		"a: &a [*a]\n", "? {a: b}\n: c\n", "!!binary aGk=: x\n", "\xff\xfe", "version: v1\nopen: {rate: {perSecond: 1e400}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		rules, err := ParseRules("p.yaml", raw)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "p.yaml:") {
				t.Errorf("error without file and line: %v", err)
			}
			return
		}
		if len(rules.Issuers)+len(rules.Keys) == 0 && rules.Open == nil {
			t.Errorf("%q accepts nobody", raw)
		}
		for _, k := range rules.Keys {
			if len(k.Hashes) == 0 || !keyName.MatchString(k.Name) {
				t.Errorf("%q: key %+v", raw, k)
			}
		}
	})
}
