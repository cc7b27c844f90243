package output

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Color is the meaning of a cell, which decides its colour.
type Color int

// The colours.
const (
	Plain Color = iota
	Good
	Warning
	Bad
	Faint
)

var sgr = map[Color]string{Good: "32", Warning: "33", Bad: "31", Faint: "2"}

// Column is a column of a table.
type Column struct {
	// Name is in capitals.
	Name string
	// Wide columns are printed in the format wide only.
	Wide bool
	// Drop is the order in which columns are left out on a narrow terminal: the columns with the highest number first.
	// Columns with 0 are never left out.
	Drop int
	// Clip lets the middle of long cells be removed on a narrow terminal.
	Clip bool
	// Wrap lets the column continue on the next lines on a narrow terminal. If it is too wide for that, it is printed
	// below the row. Only the last column may wrap.
	Wrap bool
	// Right aligns numbers.
	Right bool
}

// Cell is a text in a table.
type Cell struct {
	Text  string
	Color Color
}

// T returns a plain cell with the value.
func T(value any) Cell { return Cell{Text: fmt.Sprint(value)} }

// Table is a table. Each row has a cell for each column.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// Add adds a row.
func (t *Table) Add(cells ...Cell) { t.Rows = append(t.Rows, cells) }

const (
	gap     = 3  // between columns, as in kubectl
	minWrap = 20 // the minimum width of a column that wraps
	minClip = 10 // the minimum width of a column that is clipped
	maxClip = 24 // columns are left out before a column is clipped to less

	below  = -1 // the width of a last column that is printed below the row
	indent = 4  // of such a column
)

// Table prints a table. If lines would be too long for a terminal, it leaves columns out and wraps the last column.
func (p *Printer) Table(t Table) error {
	shown, widths := p.layout(t)
	var b strings.Builder
	if !p.NoHeaders {
		header := make([]Cell, len(t.Columns))
		for i, c := range t.Columns {
			header[i] = Cell{Text: c.Name}
		}
		p.row(&b, t.Columns, header, shown, widths)
	}
	for _, cells := range t.Rows {
		p.row(&b, t.Columns, cells, shown, widths)
	}
	_, err := io.WriteString(p.Out, b.String())
	return err
}

// layout returns the indexes of the columns to show, and the width of each column.
func (p *Printer) layout(t Table) (shown, widths []int) {
	widths = make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = utf8.RuneCountInString(c.Name)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(textOf(row[i])))
		}
		if !c.Wide || p.IsWide() {
			shown = append(shown, i)
		}
	}
	if p.Width == 0 || p.IsWide() {
		return shown, widths
	}
	total := func(clipped int) int {
		sum := -gap
		for _, i := range shown {
			switch c := t.Columns[i]; {
			case c.Wrap:
				sum += gap + min(widths[i], minWrap)
			case c.Clip:
				sum += gap + min(widths[i], clipped)
			default:
				sum += gap + widths[i]
			}
		}
		return sum
	}
	for total(maxClip) > p.Width {
		drop := slices.MaxFunc(shown, func(a, b int) int { return cmp.Compare(t.Columns[a].Drop, t.Columns[b].Drop) })
		if t.Columns[drop].Drop == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == drop })
	}
	clipped := slices.Max(widths)
	for clipped > minClip && total(clipped) > p.Width {
		clipped--
	}
	for i, c := range t.Columns {
		if c.Clip {
			widths[i] = min(widths[i], clipped)
		}
	}
	if last := shown[len(shown)-1]; t.Columns[last].Wrap {
		room := p.Width - total(clipped) + min(widths[last], minWrap)
		if room < minWrap && room < widths[last] {
			room = below
		}
		widths[last] = min(widths[last], room)
	}
	return shown, widths
}

func textOf(c Cell) string { return cmp.Or(Clean(c.Text), "-") }

func (p *Printer) row(b *strings.Builder, columns []Column, cells []Cell, shown, widths []int) {
	last := shown[len(shown)-1]
	if widths[last] == below {
		p.row(b, columns, cells, shown[:len(shown)-1], widths)
		if cells[last].Text == columns[last].Name || cells[last].Text == "" {
			return
		}
		for _, line := range wrap(textOf(cells[last]), max(minWrap, p.Width-indent)) {
			b.WriteString(strings.Repeat(" ", indent) + p.paint(line, cells[last].Color) + "\n")
		}
		return
	}
	lines := []string{textOf(cells[last])}
	if columns[last].Wrap && p.Width > 0 && !p.IsWide() {
		lines = wrap(lines[0], widths[last])
	}
	for n, line := range lines {
		for position, i := range shown {
			text, color := line, cells[i].Color
			if i != last {
				if text = textOf(cells[i]); n > 0 {
					text = ""
				}
			}
			if columns[i].Clip {
				text = clip(text, widths[i])
			}
			space := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(text)))
			text = p.paint(text, color)
			if columns[i].Right {
				text, space = space+text, ""
			}
			b.WriteString(text)
			if position < len(shown)-1 {
				b.WriteString(space + strings.Repeat(" ", gap))
			}
		}
		b.WriteByte('\n')
	}
}

// paint colours a text.
func (p *Printer) paint(text string, color Color) string {
	if !p.Color || sgr[color] == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr[color] + "m" + text + "\x1b[0m"
}

// clip replaces the middle of a text that has more than width characters.
func clip(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:width/2]) + "…" + string(runes[len(runes)-(width-width/2-1):])
}

// wrap breaks a text at spaces into lines of at most width characters; a longer word is broken.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
		for utf8.RuneCountInString(line) > width {
			cut := len(string([]rune(line)[:width]))
			lines, line = append(lines, line[:cut]), line[cut:]
		}
	}
	return append(lines, line)
}
