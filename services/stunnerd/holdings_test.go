package main

import (
	"fmt"
	"go/types"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// table lists all memory that input can make the process hold.
const table = "internal/session/holdings.txt"

// leftByRows is the maximum sum of the rows "process N KiB". leftByParts is the maximum sum of the rows "memory/N",
// which are parts of the memory of sessions. Together, leftByRows and leftByParts fit into the memory that
// sessionMemory leaves for other purposes, with the smallest usual memory limit of 64 MiB.
const (
	leftByRows  = 18 << 10
	leftByParts = 7.0 / 32
)

// holding is a row of the table.
type holding struct {
	things            []string
	who, most, charge string
	line              int
}

var columns = regexp.MustCompile(`^(\S.*?) \| (.+?) \| (.+?) \| (.+)$`)

// readTable reads the rows of the table.
func readTable(t *testing.T) (rows []holding) {
	t.Helper()
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := columns.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%s:%d: a row has four columns: things | who | the most | charge", table, number)
		}
		rows = append(rows, holding{strings.Fields(m[1]), m[2], m[3], m[4], number})
	}
	return rows
}

// everyone lists the senders of input that makes the process allocate memory.
var everyone = []string{"unauthenticated", "client", "peer", "pod", "config", "host", "admin", "none"}

// all memory that input can make the process hold has a row in one table, with a bound and a charge.
func TestHoldings(t *testing.T) {
	p, err := load(".")
	if err != nil {
		t.Fatal(err)
	}
	rows, rowOf := readTable(t), map[string]holding{}
	for _, r := range rows {
		for _, thing := range r.things {
			if other, twice := rowOf[thing]; twice {
				t.Errorf("%s:%d: %s has a row already, in line %d", table, r.line, thing, other.line)
			}
			rowOf[thing] = r
		}
	}
	found := map[string]bool{}
	for _, h := range p.holders() {
		found[h.name] = true
		if _, ok := rowOf[h.name]; !ok {
			t.Errorf("%s: %s can grow (%s): bound it, charge somebody for it, and add it to a row of %s", h.at, h.name, h.why, table)
		}
	}
	if len(found) < 100 {
		t.Fatalf("TEST NOT VALID: %d things are found", len(found))
	}
	kib, part := 0, 0.0
	for _, r := range rows {
		for _, thing := range r.things {
			if !found[thing] {
				t.Errorf("%s:%d: %s does not exist, or cannot grow: remove it", table, r.line, thing)
			}
		}
		if err := p.wrong(r, rowOf); err != nil {
			t.Errorf("%s:%d: %v", table, r.line, err)
		}
		var n int
		switch {
		case scan(r.charge, "process %d KiB", &n):
			kib += n
		case scan(r.charge, "memory/%d", &n):
			part += 1 / float64(n)
		}
	}
	t.Logf("%d things in %d rows; the process holds at most %d KiB, and 1/%.0f of the memory of sessions", len(found), len(rows), kib, 1/part)
	if kib > leftByRows || part > leftByParts {
		t.Errorf("%d KiB and 1/%.0f of the memory of sessions are more than is left for them", kib, 1/part)
	}
}

func scan(text, format string, n *int) bool {
	_, err := fmt.Sscanf(text, format, n)
	return err == nil && *n > 0
}

var quoted = regexp.MustCompile("`([a-z]+)\\.([A-Za-z0-9]+)`")

// wrong returns an error if a row contradicts the code.
func (p *source) wrong(r holding, rows map[string]holding) error {
	who := strings.Fields(r.who)
	for _, w := range who {
		if !slices.Contains(everyone, w) {
			return fmt.Errorf("who is %q, which is none of %s", w, everyone)
		}
	}
	bounds := quoted.FindAllStringSubmatch(r.most, -1)
	if len(bounds) == 0 && r.who != "none" {
		return fmt.Errorf("the bound %q names nothing of the source", r.most)
	}
	for _, b := range bounds {
		if pkg := p.packages[b[1]]; pkg == nil || pkg.Scope().Lookup(b[2]) == nil {
			return fmt.Errorf("the bound names %s.%s, which does not exist", b[1], b[2])
		}
	}
	kind, of, _ := strings.Cut(r.charge, " ")
	byClients := slices.ContainsFunc(who, func(w string) bool { return slices.Contains(everyone[:4], w) })
	switch {
	case kind == "price":
		o := p.packages["session"].Scope().Lookup(of)
		if o == nil || !strings.HasSuffix(p.fset.Position(o.Pos()).Filename, "/price.go") {
			return fmt.Errorf("%q is no price of package session", of)
		}
	case kind == "claim":
		if err := p.claims(of); err != nil {
			return err
		}
	case kind == "with":
		if _, ok := rows[of]; !ok {
			return fmt.Errorf("%s, with which it is charged, has no row", of)
		}
	case kind == "process", strings.HasPrefix(kind, "memory/"), kind == "garbage":
		var n int
		if kind != "garbage" && !scan(r.charge, "process %d KiB", &n) && !scan(r.charge, "memory/%d", &n) {
			return fmt.Errorf("the charge %s has no number", strconv.Quote(r.charge))
		}
	case kind == "config":
		if byClients && !slices.Contains(who, "config") && !slices.Contains(who, "pod") && r.things[0] != "forward.announcer.batches" {
			return fmt.Errorf("%s grow it, and the config does not bound it", r.who)
		}
	default:
		return fmt.Errorf("%q is no charge", r.charge)
	}
	return nil
}

// claims returns an error unless package.Type.field is a session.Claim.
func (p *source) claims(name string) error {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || p.packages[parts[0]] == nil {
		return fmt.Errorf("%q is no field", name)
	}
	o := p.packages[parts[0]].Scope().Lookup(parts[1])
	if o == nil {
		return fmt.Errorf("%s does not exist", name)
	}
	field, _, _ := types.LookupFieldOrMethod(o.Type(), true, o.Pkg(), parts[2])
	if field == nil || !strings.HasSuffix(field.Type().String(), "/session.Claim") {
		return fmt.Errorf("%s is no session.Claim", name)
	}
	return nil
}
