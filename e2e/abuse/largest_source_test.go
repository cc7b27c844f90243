package abuse

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Files of stunnerd with the lists of methods and attributes. TestLargestClients makes its acts from these lists, so a
// new method or attribute needs no change here.
const (
	methodsFile    = "services/stunnerd/internal/gate/admit.go"
	attributesFile = "services/stunnerd/internal/stunmsg/message.go"
)

const (
	// eachRequest and eachAttribute are the request and the attribute of an act that sends all of them in turn.
	eachRequest   = "each request in turn"
	eachAttribute = "each attribute that the server understands in turn"
)

// sizes are the sizes of attributes in eachAttribute: each bound of RFC 8489 §14 and RFC 8656 §18, this bound minus 1
// and plus 1, and the largest size that fits.
var sizes = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 19, 20, 21, 32, 33, 507, 508, 509, 762, 763, 764, datagram - 300}

// inTurn are the requests that eachRequest sends in turn.
func inTurn() []string { return slices.Sorted(maps.Keys(requests)) }

// others are the attributes that eachAttribute sends once, in addition to the attributes of the source.
func others() []string {
	names := slices.Sorted(maps.Keys(attributes))
	return slices.DeleteFunc(names, func(name string) bool { return name == eachAttribute })
}

// combinations is the number of messages of eachRequest with eachAttribute. fromSource sets it.
var combinations int

// fromSource adds the methods and attributes of the source to requests and attributes.
func fromSource(t *testing.T) {
	t.Helper()
	methods, kinds := listOf(t, methodsFile, "admission", "Method"), listOf(t, attributesFile, "understood", "Attr")
	if len(methods) < 5 || len(kinds) < 15 {
		t.Fatalf("TEST NOT VALID: methods %v and attributes %v of the source", methods, kinds)
	}
	for name, number := range methods {
		if _, ok := requests[name]; !ok {
			requests[name] = stun.NewType(stun.Method(number), stun.ClassRequest)
		}
	}
	var all []stun.AttrType
	for _, number := range kinds {
		all = append(all, stun.AttrType(number))
	}
	slices.Sort(all)
	delete(attributes, eachAttribute)
	special := others()
	variants := len(all)*len(sizes) + len(special)
	combinations = len(inTurn()) * variants
	attributes[eachAttribute] = func(n int) []stun.Setter {
		i := n % variants
		if i < len(special) {
			return attributes[special[i]](n)
		}
		i -= len(special)
		return filled(all[i/len(sizes)], sizes[i%len(sizes)])(n)
	}
}

// listOf returns the constants of pion/stun in a variable of a file. The names are without their prefix.
func listOf(t *testing.T, file, variable, prefix string) map[string]uint16 {
	t.Helper()
	root, err := harness.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, file))
	must(t, err)
	_, list, found := strings.Cut(string(text), "\nvar "+variable+" = ")
	list, _, ended := strings.Cut(list, "\n}\n")
	if !found || !ended {
		t.Fatalf("TEST NOT VALID: %s has no list %s", file, variable)
	}
	numbers := constants(t, prefix)
	named := map[string]uint16{}
	for _, m := range regexp.MustCompile(`\bstun\.`+prefix+`(\w+):`).FindAllStringSubmatch(list, -1) {
		number, ok := numbers[m[1]]
		if !ok {
			t.Fatalf("TEST NOT VALID: pion/stun has no constant %s%s", prefix, m[1])
		}
		named[m[1]] = number
	}
	return named
}

// constants returns the constants of pion/stun with a prefix.
func constants(t *testing.T, prefix string) map[string]uint16 {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/pion/stun/v2").Output()
	must(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	must(t, err)
	pattern := regexp.MustCompile(fmt.Sprintf(`(?m)^\s+%s(\w+)\s+\w+ = (0x[0-9a-fA-F]+)`, prefix))
	all := map[string]uint16{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		must(t, err)
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			number, err := strconv.ParseUint(m[2], 0, 16)
			must(t, err)
			all[m[1]] = uint16(number)
		}
	}
	return all
}

// Each method that the gate admits, and each attribute that the parser understands, is in the acts of
// TestLargestClients.
func TestActsHaveAllMethodsAndAttributes(t *testing.T) {
	fromSource(t)
	for _, name := range []string{"Allocate", "Refresh", "CreatePermission", "ChannelBind", "Binding"} {
		if listOf(t, methodsFile, "admission", "Method")[name] != uint16(requests[name].Method) {
			t.Errorf("%s has another number in the source", name)
		}
	}
	seen := map[stun.AttrType]map[int]bool{}
	for n := range combinations {
		setters := attributes[eachAttribute](n)
		if len(setters) != 1 {
			continue
		}
		a, ok := setters[0].(stun.RawAttribute)
		if !ok {
			continue
		}
		if seen[a.Type] == nil {
			seen[a.Type] = map[int]bool{}
		}
		seen[a.Type][len(a.Value)] = true
	}
	for name, number := range listOf(t, attributesFile, "understood", "Attr") {
		if len(seen[stun.AttrType(number)]) < len(sizes) {
			t.Errorf("%s is sent with the sizes %v, want %v", name, seen[stun.AttrType(number)], sizes)
		}
	}
}
