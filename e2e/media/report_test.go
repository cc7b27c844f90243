package media

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// report holds the figures of all rounds.
type report struct {
	Machine string `json:"machine"`
	Kernel  string `json:"kernel"`
	// Noise is the largest number of cores that the machine used before a round.
	Noise float64 `json:"noise"`
	// Disturbed is the number of measurements during which other programs used more than a tenth of a core.
	Disturbed int         `json:"disturbed"`
	Notes     []string    `json:"notes,omitempty"`
	Rows      []reportRow `json:"rows"`
}

// reportRow is one figure of one load: its values by server, one a round.
type reportRow struct {
	Load   string               `json:"load"`
	Figure string               `json:"figure"`
	Rounds map[string][]float64 `json:"rounds"`
}

// columns are the servers in the order of the table, and the pairs whose ratios follow.
var (
	columns = []string{"none", "stunnerd", "in-kernel", "baseline", "coturn", "pion/turn v3"}
	pairs   = [][2]string{
		{"stunnerd", "coturn"}, {"stunnerd", "pion/turn v3"}, {"stunnerd", "baseline"}, {"in-kernel", "coturn"},
	}
)

func newReport() *report {
	var name unix.Utsname
	_ = unix.Uname(&name)
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); m != nil {
			model = string(m[1])
		}
	}
	return &report{
		Machine: fmt.Sprintf("%d cores, %s", cores, model), Kernel: "Linux " + unix.ByteSliceToString(name.Release[:]),
	}
}

func (r *report) record(load, server string, f figures) {
	for name, value := range f {
		i := slices.IndexFunc(r.Rows, func(row reportRow) bool { return row.Load == load && row.Figure == name })
		if i < 0 {
			i = len(r.Rows)
			r.Rows = append(r.Rows, reportRow{load, name, map[string][]float64{}})
		}
		r.Rows[i].Rounds[server] = append(r.Rows[i].Rounds[server], value)
	}
}

// print writes the table to the output of the test, and the files of -output.
func (r *report) print(t *testing.T) {
	t.Helper()
	r.sort()
	table := r.markdown()
	fmt.Println(table)
	if *output == "" {
		return
	}
	data, err := json.MarshalIndent(r, "", "  ")
	for kind, content := range map[string]string{"md": table, "json": string(data)} {
		err = errors.Join(err, os.WriteFile(*output+"."+kind, []byte(content), 0o644))
	}
	if err != nil {
		t.Error(err)
	}
}

// sort keeps the loads in the order of their measurement, and sorts the figures of each.
func (r *report) sort() {
	loads := map[string]int{}
	for i, row := range r.Rows {
		if _, known := loads[row.Load]; !known {
			loads[row.Load] = i
		}
	}
	slices.SortFunc(r.Rows, func(a, b reportRow) int {
		return cmp.Or(
			loads[a.Load]-loads[b.Load], slices.Index(figureOrder, a.Figure)-slices.Index(figureOrder, b.Figure),
			cmp.Compare(a.Figure, b.Figure),
		)
	})
}

const legend = `
CPU per packet is that of the process. For in-kernel, it is the CPU that the relay adds to sending without a server.
\* The process did not use 85 % of its core: its costs are not comparable. † It lost more than 0.1 %.
`

func (r *report) markdown() string {
	var b strings.Builder
	var names []string
	var ratios [][2]string
	has := func(server string) bool {
		return slices.ContainsFunc(r.Rows, func(row reportRow) bool { return row.Rounds[server] != nil })
	}
	for _, c := range columns {
		if has(c) {
			names = append(names, c)
		}
	}
	for _, p := range pairs {
		if has(p[0]) && has(p[1]) {
			ratios = append(ratios, p)
		}
	}
	fmt.Fprintf(
		&b, "%s, %s; median (minimum–maximum) of %d rounds, %d measurements disturbed by other programs.\n\n",
		r.Machine, r.Kernel, *rounds, r.Disturbed,
	)
	fmt.Fprintf(&b, "| load | figure | %s |", strings.Join(names, " | "))
	for _, p := range ratios {
		fmt.Fprintf(&b, " %s : %s |", p[0], p[1])
	}
	fmt.Fprintf(&b, "\n|%s\n", strings.Repeat(" --- |", 2+len(names)+len(ratios)))
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "| %s | %s |", row.Load, row.Figure)
		for _, n := range names {
			fmt.Fprintf(&b, " %s |", r.cell(row, n))
		}
		for _, p := range ratios {
			fmt.Fprintf(&b, " %s |", ratio(row.Rounds[p[0]], row.Rounds[p[1]]))
		}
		b.WriteString("\n")
	}
	b.WriteString(legend)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}

// cell returns the median of a server and its spread.
func (r *report) cell(row reportRow, server string) string {
	switch values := row.Rounds[server]; len(values) {
	case 0:
		return "–"
	case 1:
		return number(values[0]) + r.mark(row, server)
	default:
		return fmt.Sprintf(
			"%s%s (%s–%s)", number(median(values)), r.mark(row, server), number(slices.Min(values)),
			number(slices.Max(values)),
		)
	}
}

// Limits for comparable figures, in percent: the least share of its core that a server must use, and the largest share
// of lost datagrams.
const leastUsed, mostLost = 85, 0.1

// mark returns the mark of a figure that is not comparable: * if the server had CPU time left, † if it lost datagrams.
func (r *report) mark(row reportRow, server string) (signs string) {
	for _, other := range r.Rows {
		switch v := median(other.Rounds[server]); {
		case other.Load != row.Load:
		case row.Figure == cost && other.Figure == share && v < leastUsed && server != "in-kernel":
			signs += "\\*"
		case row.Figure == rate && other.Figure == loss && v > mostLost:
			signs += "†"
		}
	}
	return signs
}

// ratio is the median of the ratios of the rounds.
func ratio(a, b []float64) string {
	if len(a) == 0 || len(a) != len(b) {
		return "–"
	}
	var all []float64
	for i := range a {
		if b[i] != 0 {
			all = append(all, a[i]/b[i])
		}
	}
	if len(all) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", median(all))
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 1000:
		text := fmt.Sprintf("%.0f", v)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case size >= 100:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// The table has medians with their spread, and medians of the ratios of the rounds. A cost is marked if the server had
// time left.
func TestReport(t *testing.T) {
	r := &report{}
	for round, stunnerd := range []float64{6, 4, 5} {
		r.record("up", "stunnerd", figures{cost: stunnerd, share: 99})
		r.record("up", "coturn", figures{cost: []float64{3, 4, 5}[round], share: 50})
	}
	r.sort()
	got := r.markdown()
	for _, want := range []string{
		"| load | figure | stunnerd | coturn | stunnerd : coturn |\n",
		"| up | " + cost + " | 5.00 (4.00–6.00) | 4.00\\* (3.00–5.00) | 1.00 |\n| up | " + share + " | 99.0 (",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table has no %q:\n%s", want, got)
		}
	}
}
