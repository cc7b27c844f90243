// Package grafana is as much of Grafana's dashboard model as the boards need.
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
	GraphTooltip  int         `json:"graphTooltip"` // 1: the crosshair stands in every panel
	Links         []Link      `json:"links"`
	Templating    Templating  `json:"templating"`
	Annotations   Annotations `json:"annotations"`
	Panels        []Panel     `json:"panels"`
}

// Range is a span of time, as Grafana writes it.
type Range struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Link leads to other boards, or to a page.
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

// Page is a link to a page outside Grafana.
func Page(title, url string) Link {
	return Link{Title: title, Type: "link", URL: url, Icon: "doc", Tags: []string{}, TargetBlank: true}
}

// Boards is links to all boards with a tag, which take over what the reader has chosen.
func Boards(tag string) Link {
	return Link{Title: "Boards", Type: "dashboards", Icon: "dashboard", Tags: []string{tag}, IncludeVars: true, KeepTime: true}
}

// DataLink is where a click on a value leads.
type DataLink struct {
	Title       string `json:"title"`
	URL         string `json:"url"`
	TargetBlank bool   `json:"targetBlank"`
}

// Templating holds the variables.
type Templating struct {
	List []Variable `json:"list"`
}

// Variable is what a reader chooses at the top of a board.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *Datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh,omitempty"` // 2: whenever the time changes
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

// Datasource says where data comes from.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Annotations are marks in time, over all panels.
type Annotations struct {
	List []Annotation `json:"list"`
}

// Annotation is a query whose results are marks in time.
type Annotation struct {
	Name        string     `json:"name"`
	Datasource  Datasource `json:"datasource"`
	Enable      bool       `json:"enable"`
	Expr        string     `json:"expr"`
	IconColor   string     `json:"iconColor"`
	TitleFormat string     `json:"titleFormat"`
	Step        string     `json:"step"`
}

// Prometheus is whichever the reader has chosen.
func Prometheus() Datasource { return Datasource{Type: "prometheus", UID: "${datasource}"} }

// SourceVariable lets the reader choose a Prometheus.
func SourceVariable() Variable {
	return Variable{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"}
}

// LabelVariable lets the reader choose values of a label. All of them includes series without the label.
func LabelVariable(label, title, selector string) Variable {
	query, source := "label_values("+selector+", "+label+")", Prometheus()
	return Variable{
		Name: label, Label: title, Type: "query", Query: query, Datasource: &source,
		Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*", Current: &Choice{Text: "All", Value: "$__all"},
	}
}
