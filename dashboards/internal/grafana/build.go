package grafana

// columns is the width of a board.
const columns = 24

// Query is a query with its legend or column title.
type Query struct {
	Expr   string
	Legend string
}

// Limits are the thresholds of the colours yellow and red. With Below, values under a threshold have its colour.
type Limits struct {
	Yellow, Red float64
	Below       bool
}

func (l Limits) thresholds() *Thresholds {
	steps := []Step{{Color: "green"}, {Color: "yellow", Value: &l.Yellow}, {Color: "red", Value: &l.Red}}
	if l.Below {
		steps = []Step{{Color: "red"}, {Color: "yellow", Value: &l.Red}, {Color: "green", Value: &l.Yellow}}
	}
	return &Thresholds{Mode: "absolute", Steps: steps}
}

// Stat shows one current number. It does not look back, because an old value would hide that there is none any more.
type Stat struct {
	Title, Help, Unit string
	Expr              string
	Limits            *Limits
	// None is shown if there is no value.
	None string
	// Page is the URL of the runbook.
	Page string
}

// Graph shows values over time.
type Graph struct {
	Title, Help, Unit string
	Queries           []Query
	Limits            *Limits
	Stacked           bool
	// Share sets the axis to 0 to 1.
	Share bool
	// Mirrored is a regular expression of legends that are drawn below the axis.
	Mirrored string
	Page     string
}

// Table shows current values, one row for each combination of the labels By.
type Table struct {
	Title, Help string
	By          []string
	Columns     []Column
	None        string
	// Links are the links of labels.
	Links map[string]DataLink
}

// Column is a query of a table. Without a unit it is hidden, and only defines which rows exist.
type Column struct {
	Query
	Unit   string
	Limits *Limits
}

func panel(kind, title, help, page string, field Field, options any) Panel {
	source := Prometheus()
	p := Panel{
		Type: kind, Title: title, Description: help, Datasource: &source, Options: options,
		FieldConfig: &FieldConfig{Defaults: field, Overrides: []Override{}},
	}
	if page != "" {
		p.Links = []Link{Page("Runbook", page)}
	}
	return p
}

// ref returns the reference of a query of a panel: A, B, ...
func ref(i int) string { return string(rune('A' + i)) }

// Panel returns the panel in Grafana's model.
func (s Stat) Panel() Panel {
	field := Field{Unit: s.Unit, NoValue: s.None, Color: &Color{Mode: "fixed", FixedColor: "blue"}}
	mode := "none"
	if s.Limits != nil {
		field.Color, field.Thresholds, mode = &Color{Mode: "thresholds"}, s.Limits.thresholds(), "background"
	}
	p := panel("stat", s.Title, s.Help, s.Page, field, statOptions{
		ColorMode: mode, GraphMode: "none", JustifyMode: "center", TextMode: "value",
		ReduceOptions: reduced{Calcs: []string{"lastNotNull"}},
	})
	p.Targets = []Target{{RefID: ref(0), Datasource: Prometheus(), Expr: s.Expr, Instant: true}}
	return p
}

// Panel returns the panel in Grafana's model.
func (g Graph) Panel() Panel {
	zero, one := 0.0, 1.0
	field := Field{
		Unit: g.Unit, Color: &Color{Mode: "palette-classic"},
		Custom: &Custom{DrawStyle: "line", LineWidth: 1, FillOpacity: 10, ShowPoints: "never"},
	}
	if g.Mirrored == "" {
		field.Min = &zero
	}
	if g.Share {
		field.Max = &one
	}
	if g.Stacked {
		field.Custom.Stacking, field.Custom.FillOpacity = &Stacking{Mode: "normal", Group: "A"}, 40
	}
	if g.Limits != nil {
		field.Thresholds, field.Custom.Thresholds = g.Limits.thresholds(), &Style{Mode: "dashed"}
	}
	p := panel("timeseries", g.Title, g.Help, g.Page, field, graphOptions{
		Legend: legend{
			DisplayMode: "table", Placement: "bottom", ShowLegend: true, Calcs: []string{"lastNotNull", "max"},
		},
		Tooltip: tooltip{Mode: "multi", Sort: "desc"},
	})
	for i, q := range g.Queries {
		p.Targets = append(p.Targets,
			Target{RefID: ref(i), Datasource: Prometheus(), Expr: q.Expr, LegendFormat: q.Legend, Range: true})
	}
	if g.Mirrored != "" {
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, Override{
			Matcher:    Matcher{ID: "byRegexp", Options: g.Mirrored},
			Properties: []Property{{ID: "custom.transform", Value: "negative-Y"}},
		})
	}
	return p
}

// Panel returns the panel in Grafana's model.
func (t Table) Panel() Panel {
	field := Field{NoValue: t.None, Custom: &Custom{Align: "auto", Filterable: true}}
	p := panel("table", t.Title, t.Help, "", field, tableOptions{ShowHeader: true, CellHeight: "sm"})
	hidden, order := map[string]any{"Time": true}, map[string]any{}
	for i, label := range t.By {
		order[label] = i
	}
	names := map[string]any{}
	for i, c := range t.Columns {
		p.Targets = append(p.Targets,
			Target{RefID: ref(i), Datasource: Prometheus(), Expr: c.Expr, Instant: true, Format: "table"})
		value := "Value #" + ref(i)
		if len(t.Columns) == 1 {
			value = "Value" // Grafana adds the reference only if there are several queries
		}
		names[value], order[value] = c.Legend, len(t.By)+i
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, c.override())
	}
	for _, label := range t.By {
		if link, ok := t.Links[label]; ok {
			p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, Override{
				Matcher:    Matcher{ID: "byName", Options: label},
				Properties: []Property{{ID: "links", Value: []DataLink{link}}},
			})
		}
	}
	p.Transformations = []Transformation{
		{ID: "merge", Options: map[string]any{}},
		{ID: "organize", Options: map[string]any{"excludeByName": hidden, "indexByName": order, "renameByName": names}},
	}
	return p
}

func (c Column) override() Override {
	o := Override{
		Matcher: Matcher{ID: "byName", Options: c.Legend}, Properties: []Property{{ID: "unit", Value: c.Unit}},
	}
	if c.Limits != nil {
		o.Properties = append(o.Properties,
			Property{ID: "thresholds", Value: c.Limits.thresholds()},
			Property{ID: "custom.cellOptions", Value: map[string]string{"type": "color-background", "mode": "basic"}})
	}
	return o
}

// Section is a heading with lines of panels.
type Section struct {
	Title string
	Lines []Line
}

// Line is a row of panels of one height. They have equal widths unless Widths is set.
type Line struct {
	Height int
	Panels []Panel
	Widths []int
}

// Arrange positions the panels of sections on the grid.
func Arrange(sections ...Section) (all []Panel) {
	y := 0
	place := func(p Panel, pos GridPos) {
		p.ID, p.GridPos = len(all)+1, pos
		all = append(all, p)
	}
	for _, s := range sections {
		place(Panel{Type: "row", Title: s.Title, Collapsed: new(false), Panels: &[]Panel{}},
			GridPos{H: 1, W: columns, Y: y})
		y++
		for _, line := range s.Lines {
			left := 0
			for i, p := range line.Panels {
				width := columns*(i+1)/len(line.Panels) - left
				if line.Widths != nil {
					width = line.Widths[i]
				}
				place(p, GridPos{H: line.Height, W: width, X: left, Y: y})
				left += width
			}
			y += line.Height
		}
	}
	return all
}
