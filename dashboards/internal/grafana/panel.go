package grafana

// Panel is a panel of a board.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	GridPos         GridPos          `json:"gridPos"`
	Datasource      *Datasource      `json:"datasource,omitempty"`
	Targets         []Target         `json:"targets,omitempty"`
	FieldConfig     *FieldConfig     `json:"fieldConfig,omitempty"`
	Options         any              `json:"options,omitempty"`
	Transformations []Transformation `json:"transformations,omitempty"`
	Links           []Link           `json:"links,omitempty"`
	Collapsed       *bool            `json:"collapsed,omitempty"` // of a row
	Panels          *[]Panel         `json:"panels,omitempty"`    // of a row
}

// GridPos is a position on the grid of 24 columns.
type GridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// Target is one query of a panel.
type Target struct {
	RefID        string     `json:"refId"`
	Datasource   Datasource `json:"datasource"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat,omitempty"`
	Instant      bool       `json:"instant,omitempty"`
	Range        bool       `json:"range,omitempty"`
	Format       string     `json:"format,omitempty"`
}

// FieldConfig is the display of values.
type FieldConfig struct {
	Defaults  Field      `json:"defaults"`
	Overrides []Override `json:"overrides"`
}

// Field is the display of the values of a series or column.
type Field struct {
	Unit       string      `json:"unit,omitempty"`
	Decimals   *int        `json:"decimals,omitempty"`
	Min        *float64    `json:"min,omitempty"`
	Max        *float64    `json:"max,omitempty"`
	NoValue    string      `json:"noValue,omitempty"`
	Color      *Color      `json:"color,omitempty"`
	Thresholds *Thresholds `json:"thresholds,omitempty"`
	Custom     *Custom     `json:"custom,omitempty"`
}

// Color is the colour mode of a field.
type Color struct {
	Mode       string `json:"mode"`
	FixedColor string `json:"fixedColor,omitempty"`
}

// Thresholds are the values at which the colour changes.
type Thresholds struct {
	Mode  string `json:"mode"`
	Steps []Step `json:"steps"`
}

// Step is one threshold; the first has no value.
type Step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// Custom are options of graphs and tables.
type Custom struct {
	DrawStyle   string    `json:"drawStyle,omitempty"`
	LineWidth   int       `json:"lineWidth,omitempty"`
	FillOpacity int       `json:"fillOpacity,omitempty"`
	ShowPoints  string    `json:"showPoints,omitempty"`
	AxisLabel   string    `json:"axisLabel,omitempty"`
	Stacking    *Stacking `json:"stacking,omitempty"`
	Thresholds  *Style    `json:"thresholdsStyle,omitempty"`
	Align       string    `json:"align,omitempty"`
	Filterable  bool      `json:"filterable,omitempty"`
}

// Stacking is the stacking of series.
type Stacking struct {
	Mode  string `json:"mode"`
	Group string `json:"group"`
}

// Style is the display mode of thresholds.
type Style struct {
	Mode string `json:"mode"`
}

// Override is the display of the fields that a Matcher selects.
type Override struct {
	Matcher    Matcher    `json:"matcher"`
	Properties []Property `json:"properties"`
}

// Matcher selects the fields of an Override. ID is the kind of the selection, such as byName.
type Matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

// Property is one display option, such as unit or color.
type Property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

// Transformation changes query results before a panel shows them.
type Transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

// statOptions, graphOptions and tableOptions are the options of these types of panels.
type (
	statOptions struct {
		ColorMode     string  `json:"colorMode"`
		GraphMode     string  `json:"graphMode"`
		JustifyMode   string  `json:"justifyMode"`
		TextMode      string  `json:"textMode"`
		ReduceOptions reduced `json:"reduceOptions"`
	}
	reduced struct {
		Calcs  []string `json:"calcs"`
		Fields string   `json:"fields"`
		Values bool     `json:"values"`
	}
	graphOptions struct {
		Legend  legend  `json:"legend"`
		Tooltip tooltip `json:"tooltip"`
	}
	legend struct {
		DisplayMode string   `json:"displayMode"`
		Placement   string   `json:"placement"`
		ShowLegend  bool     `json:"showLegend"`
		Calcs       []string `json:"calcs"`
	}
	tooltip struct {
		Mode string `json:"mode"`
		Sort string `json:"sort"`
	}
	tableOptions struct {
		ShowHeader bool   `json:"showHeader"`
		CellHeight string `json:"cellHeight"`
	}
)
