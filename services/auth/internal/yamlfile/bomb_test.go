package yamlfile_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
)

// largest is the size of the test files in bytes. It is smaller than the maximum, and suffices because the cost must be
// proportional to the size.
const largest = 32 << 10

// bombs are files that cost a careless reader much more than their size.
var bombs = map[string]string{
	"nested lists":              strings.Repeat("[", largest),
	"nested lists in a block":   strings.Repeat("- ", largest/2),
	"nested objects":            strings.Repeat("{a: ", largest/4),
	"nested keys":               strings.Repeat("? ", largest/2),
	"aliases of aliases":        "a: &a [x,x,x,x,x,x,x,x]\n" + doubled(25),
	"many aliases":              "a: &a x\nb: [" + filled("*a,", largest-20) + "]",
	"merged objects":            "a: &a {b: c}\nd:\n  <<: [" + filled("*a,", largest-40) + "]",
	"a long key with a list":    "version: v1\nissuers: [{issuer: i, rules: [{claims: {? " + filled("k", largest/2) + " : [" + filled("a,", largest/2-120) + "]}}]}]",
	"a long key, a claim":       "version: v1\nissuers: [{issuer: i, requiredClaims: {? " + filled("k", largest/2) + " : [" + filled("[],", largest/2-120) + "]}}]",
	"long keys in each other":   nestedKeys(),
	"a long unknown field":      "? " + filled("k", largest-10) + "\n: v",
	"many unknown fields":       numbered("k", ": v\n", largest),
	"the same field":            filled("version: v1\n", largest),
	"many documents":            filled("---\nversion: v1\n", largest),
	"many directives":           filled("%YAML 1.1\n", largest),
	"many tags":                 filled("%TAG !a! tag:x,2000:\n", largest),
	"many regions":              "version: v1\nregions: [" + filled("{name: a},", largest-40) + "]",
	"many networks":             "version: v1\nregions: [{name: a, networks: [" + filled("x,", largest-60) + "]}]",
	"many keys":                 "version: v1\nkeys: [" + filled("{name: a, hashes: [b]},", largest-40) + "]",
	"a long number":             "version: v1\nopen: {maxTTL: " + filled("9", largest-60) + "}",
	"a long exponent":           "version: v1\nopen: {rate: {perSecond: 1e" + filled("9", largest-80) + "}}",
	"a long time":               "version: v1\nkeys: [{expires: " + filled("2", largest-60) + "}]",
	"a long pattern":            "version: v1\nopen: {gateways: ['m/" + filled("*a", largest-60) + "']}",
	"many routes":               "version: v1\nopen: {scope: {routes: [" + filled("a/b,", largest-60) + "]}}",
	"many countries":            "version: v1\ngeoIP: g\nclusters: [{name: a, region: a, config: c}]\nregions: [{name: a, countries: [" + filled("DE,", largest-120) + "]}]",
	"many hosts":                "version: v1\nissuers: [{issuer: 'https://i', audience: a, discovery: true, jwksHosts: [" + filled("a,", largest-120) + "]}]",
	"many algorithms":           "version: v1\nissuers: [{issuer: i, audience: a, jwksFile: f, algorithms: [" + filled("RS256,", largest-120) + "]}]",
	"many claims":               "version: v1\nissuers: [{issuer: i, audience: a, jwksFile: f, requiredClaims: {" + numbered("k", ": v, ", largest-120) + "}}]",
	"many values of a claim":    "version: v1\nissuers: [{issuer: i, audience: a, jwksFile: f, requiredClaims: {c: [" + filled("v,", largest-120) + "]}}]",
	"many rules":                "version: v1\nissuers: [{issuer: i, audience: a, jwksFile: f, rules: [" + filled("{claims: {a: b}},", largest-120) + "]}]",
	"an anchor without alias":   "version: &v v1\nopen: {}",
	"an alias of itself":        "version: v1\nopen: &o {scope: *o}",
	"a merge of itself":         "version: v1\nopen: &o {<<: *o}",
	"a merged list of itself":   "version: v1\nkeys: &k [*k, *k, *k, *k]",
	"an alias as key":           "&v version: v1\n*v : v1\nopen: {}",
	"NUL":                       filled("\x00", largest),
	"NUL after a document":      "version: v1\nopen: {}\n" + filled("\x00", largest-40),
	"NUL in a name":             `{version: v1, keys: [{name: "a\0b", hashes: ["sha256:` + filled("0", 64) + `"]}], clusters: 1}`,
	"NUL in a key":              `{version: v1, "open\0": {}}`,
	"UTF-16":                    "\xff\xfe" + filled("v\x00", largest-2),
	"a long template":           "version: v1\nopen: {user: '" + filled("{username}", largest-60) + "'}",
	"a long name":               "version: v1\nkeys: [{name: " + filled("a", largest-60) + "}]",
	"escapes":                   `"` + filled(`\x00`, largest-10) + `"`,
	"comments":                  filled("# x\n", largest),
	"comments between elements": "version: v1\nkeys:\n" + filled("# x\n- \n", largest-30),
	"lines in a scalar":         "version: |\n" + filled(" x\n", largest-20),
	"folded lines":              "version: >\n" + filled(" x\n\n", largest-20),
	"spaces":                    filled(" ", largest),
	"tabs":                      filled("\t", largest),
	"carriage returns":          filled("\r", largest),
	"byte order marks":          filled("\ufeff", largest),
	"quotation marks":           filled(`"a": `, largest),
	"no UTF-8":                  filled("\xff", largest),
}

// filled repeats a text up to a size.
func filled(text string, size int) string { return strings.Repeat(text, size/len(text)) }

func numbered(prefix, suffix string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-20; i++ {
		b.WriteString(prefix + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) +
			string(rune('a'+i/676%26)) + suffix)
	}
	return b.String()
}

func doubled(levels int) string {
	var b strings.Builder
	for i := range levels {
		from, to := string(rune('a'+i)), string(rune('a'+i+1))
		b.WriteString(to + ": &" + to + " [" + filled("*"+from+",", 32) + "]\n")
	}
	return b.String()
}

func nestedKeys() string {
	var b strings.Builder
	for range 15 {
		b.WriteString("{? " + filled("k", largest/16-10) + " : ")
	}
	return b.String() + "v" + strings.Repeat("}", 15)
}

// TestFileBombs: parsing a file allocates at most its size times a factor, and the error is short. Allocated bytes are
// measured in place of time, which depends on the load of the machine.
func TestFileBombs(t *testing.T) {
	const most = 300 * largest
	for name, text := range bombs {
		if len(text) > largest {
			t.Fatalf("TEST NOT VALID: %s has %d bytes", name, len(text))
		}
		for reader, read := range map[string]func(string, []byte) error{
			"policy":   func(file string, raw []byte) error { _, err := access.ParseRules(file, raw); return err },
			"clusters": func(file string, raw []byte) error { _, err := region.Parse(file, raw); return err },
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read("file.yaml", []byte(text))
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			if err == nil {
				t.Errorf("%s: %s is accepted", reader, name)
				continue
			}
			if allocated > most {
				t.Errorf("%s: %s takes %d MiB", reader, name, allocated>>20)
			}
			if n := len(err.Error()); n > 32<<10 {
				t.Errorf("%s: %s has an error of %d bytes", reader, name, n)
			}
			t.Logf("%-9s %-26s %5d MiB  %.60q", reader, name, allocated>>20, err)
		}
	}
}
