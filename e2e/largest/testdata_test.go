package largest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sizeTable is the content of testdata/sizes.tsv. A line has a row and its fields, each with its growth and its size. A
// field that cannot grow has size 0.
type sizeTable struct {
	lines map[string][]string // lines by row and fields
	found []string            // the keys in the order of the file
}

const columns = 3 // number of columns of a field

func (t *sizeTable) put(line []string) {
	k := keyOf(line)
	if _, is := t.lines[k]; !is {
		t.found = append(t.found, k)
	}
	t.lines[k] = line
}

// keyOf returns the row and the fields of a line.
func keyOf(line []string) string {
	k := line[0]
	for i := 1; i < len(line); i += columns {
		k += "\t" + line[i]
	}
	return k
}

func readSizes(t *testing.T) *sizeTable {
	t.Helper()
	table := &sizeTable{lines: map[string][]string{}}
	for _, line := range readLines(t, "sizes.tsv") {
		parts := strings.Split(line, "\t")
		if len(parts)%columns != 1 {
			t.Fatalf("testdata/sizes.tsv: %d columns: %s", len(parts), line)
		}
		table.put(parts)
	}
	return table
}

// readLines returns the lines of a file in testdata, which may not exist yet.
func readLines(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(data), "\n"), func(line string) bool { return line == "" })
}

func writeLines(t *testing.T, file string, lines []string) {
	t.Helper()
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", file), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// write writes the file. Rows that were not tried are unchanged.
func (t *sizeTable) write(test *testing.T) {
	test.Helper()
	var lines []string
	for _, k := range t.found {
		lines = append(lines, strings.Join(t.lines[k], "\t"))
	}
	slices.Sort(lines)
	writeLines(test, "sizes.tsv", lines)
}

// has reports whether the table has sizes of a row.
func (t *sizeTable) has(r row) bool {
	return slices.ContainsFunc(t.found, func(k string) bool { return t.lines[k][0] == r.name })
}

func (t *sizeTable) set(c *candidate) {
	line := []string{c.row.name}
	for i, f := range c.fields {
		if len(c.size) == 0 {
			line = append(line, f.String(), "-", "0")
		} else {
			line = append(line, f.String(), c.growth[i].name, strconv.Itoa(c.size[i]))
		}
	}
	t.put(line)
}

// setPairs replaces the pairs of a row.
func (t *sizeTable) setPairs(r row, pairs []*candidate) {
	t.found = slices.DeleteFunc(t.found, func(k string) bool {
		line := t.lines[k]
		return line[0] == r.name && len(line) > 1+columns
	})
	for _, c := range pairs {
		t.set(c)
	}
}

// candidate returns the object in which a field has its size of the table.
func (t *sizeTable) candidate(r row, n *node, base map[string]any, f field) (*candidate, bool) {
	line, is := t.lines[r.name+"\t"+f.String()]
	if !is {
		return nil, false
	}
	c := &candidate{row: r, node: n, base: base, fields: []field{f}}
	return c, c.fill(line) == nil
}

// fill sets the sizes and the growths of the fields.
func (c *candidate) fill(line []string) error {
	for i, f := range c.fields {
		size, err := strconv.Atoi(line[3+i*columns])
		if err != nil {
			return fmt.Errorf("testdata/sizes.tsv: %w", err)
		}
		if size == 0 {
			return nil
		}
		name := line[2+i*columns]
		number := slices.IndexFunc(growths[f.form], func(y growth) bool { return y.name == name })
		if number < 0 {
			return fmt.Errorf("testdata/sizes.tsv: no way %q of a %s", name, f.form)
		}
		c.size, c.growth = append(c.size, size), append(c.growth, growths[f.form][number])
	}
	return nil
}

// pairs returns the pairs of a row in the table.
func (t *sizeTable) pairs(r row, n *node, base map[string]any, fields []field) (pairs []*candidate, err error) {
	for _, k := range t.found {
		line := t.lines[k]
		if line[0] != r.name || len(line) == 1+columns {
			continue
		}
		c := &candidate{row: r, node: n, base: base}
		for i := 1; i < len(line); i += columns {
			plain := strings.ReplaceAll(line[i], elements, element)
			number := slices.IndexFunc(fields, func(f field) bool { return f.String() == plain })
			if number < 0 {
				return nil, fmt.Errorf("testdata/sizes.tsv: %s has no field %s: run the test with -update", r.name, line[i])
			}
			f := fields[number]
			if i > 1 {
				f.path = slices.Clone(f.path)
				f.path[len(c.fields[0].path)] = elements
			}
			c.fields = append(c.fields, f)
		}
		if err := c.fill(line); err != nil {
			return nil, err
		}
		pairs = append(pairs, c)
	}
	return pairs, nil
}
