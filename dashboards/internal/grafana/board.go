// Package grafana is the part of Grafana's dashboard model that the boards use.
//
// grafana-foundation-sdk has builders for the whole model. They are generated for each Grafana release, with an API
// below version 1.0. The boards need three panel types, which are plain values here that tests can inspect. The types of
// the SDK check the generated files in a test.
package grafana

// Board is a dashboard.
type Board struct {
	UID           string      `json:"uid"`
	Title         string      `json:"title"`
	Description   string      `json:"description"`
	Tags          []string    `json:"tags"`
	SchemaVersion int         `json:"schemaVersion"`
	Editable      bool        `json:"editable"`
	Refresh       string      `json:"refresh"`
	Time          Range       `json:"time"`
	Timezone      string      `json:"timezone"`
	GraphTooltip  int         `json:"graphTooltip"` // 1: shared crosshair
	Links         []Link      `json:"links"`
	Templating    Templating  `json:"templating"`
	Annotations   Annotations `json:"annotations"`
	Panels        []Panel     `json:"panels"`
}

// Range is a time range in Grafana's notation.
type Range struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Link is a link of a board or panel, to other boards or to a page.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	URL         string   `json:"url"`
	Icon        string   `json:"icon"`
	Tooltip     string   `json:"tooltip"`
	Tags        []string `json:"tags"`
	AsDropdown  bool     `json:"asDropdown"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
	TargetBlank bool     `json:"targetBlank"`
}

// Page returns a link to a page outside Grafana.
func Page(title, url string) Link {
	return Link{Title: title, Type: "link", URL: url, Icon: "doc", Tags: []string{}, TargetBlank: true}
}

// Boards returns links to all boards with a tag. They keep the variables and the time range.
func Boards(tag string) Link {
	return Link{
		Title: "Boards", Type: "dashboards", Icon: "dashboard", Tags: []string{tag}, IncludeVars: true, KeepTime: true,
	}
}

// DataLink is the link of a value.
type DataLink struct {
	Title       string `json:"title"`
	URL         string `json:"url"`
	TargetBlank bool   `json:"targetBlank"`
}

// Templating holds the variables.
type Templating struct {
	List []Variable `json:"list"`
}

// Variable is a variable of a board, which the user selects.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *Datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"` // 2: on a change of the time range
	Sort       int         `json:"sort,omitempty"`    // 1: by name
	Multi      bool        `json:"multi,omitempty"`
	IncludeAll bool        `json:"includeAll,omitempty"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    *Choice     `json:"current,omitempty"`
}

// Choice is the value of a variable.
type Choice struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

// Datasource identifies a data source.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Annotations are the annotations of a board.
type Annotations struct {
	List []Annotation `json:"list"`
}

// Annotation is a query whose results are shown as marks in all panels.
type Annotation struct {
	Name        string     `json:"name"`
	Datasource  Datasource `json:"datasource"`
	Enable      bool       `json:"enable"`
	Expr        string     `json:"expr"`
	IconColor   string     `json:"iconColor"`
	TitleFormat string     `json:"titleFormat"`
	Step        string     `json:"step"`
}

// Prometheus returns the data source that the user has selected.
func Prometheus() Datasource { return Datasource{Type: "prometheus", UID: "${datasource}"} }

// SourceVariable returns the variable that selects a Prometheus.
func SourceVariable() Variable {
	return Variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"}
}

// LabelVariable returns a variable that selects values of a label. "All" includes series without the label.
func LabelVariable(label, title, selector string) Variable {
	query, source := "label_values("+selector+", "+label+")", Prometheus()
	return Variable{
		Name: label, Label: title, Type: "query", Query: query, Datasource: &source,
		Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*",
		Current: &Choice{Text: "All", Value: "$__all"},
	}
}
