package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/stunner-gateway/stunner/dashboards/internal/board"
	"github.com/stunner-gateway/stunner/dashboards/internal/grafana"
)

// TestFilesAreCurrent compares the committed files with the generated ones.
func TestFilesAreCurrent(t *testing.T) {
	files, err := render()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not current: run make gen (%v)", name, err)
		}
	}
}

// TestModel: the boards are valid in the model of Grafana that grafana-foundation-sdk is generated from, without fields
// that it does not have. Its types decode the options of each type of panel too.
func TestModel(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	files, err := render()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for name, text := range files {
		if path.Ext(name) != ".json" {
			continue
		}
		checked++
		if err := strict(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for field, other := range map[string]string{
			`"graphTooltip": 1`: `"graphTooltip": "shared"`, `"schemaVersion"`: `"schemeVersion"`,
			`"fieldConfig"`: `"fieldsConfig"`, `"refId"`: `"refID2"`,
		} {
			if changed := bytes.Replace(text, []byte(field), []byte(other), 1); strict(changed) == nil {
				t.Errorf("%s: %s is accepted instead of %s", name, other, field)
			}
		}
	}
	if checked != len(board.All()) {
		t.Errorf("%d boards were checked, want %d", checked, len(board.All()))
	}
}

// strict returns the errors of a board. Grafana sets fields that are missing.
func strict(text []byte) error {
	//lint:ignore SA1019 The boards have the schema of this type; dashboardv2 is another one.
	var d dashboard.Dashboard
	err := d.UnmarshalJSONStrict(text)
	var all cog.BuildErrors
	if errors.As(err, &all) {
		all = slices.DeleteFunc(all, func(e *cog.BuildError) bool {
			return e.Message == "required field is missing from input"
		})
		if err = nil; len(all) > 0 {
			err = all
		}
	}
	return errors.Join(err, json.Unmarshal(text, &d), d.Validate())
}

// TestPanels checks that each panel has a description, a unit and a query, and that panels do not overlap.
func TestPanels(t *testing.T) {
	for file, b := range board.All() {
		var taken [1000][24]string
		for _, p := range b.Panels {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
					if taken[y][x] != "" {
						t.Fatalf("%s: %q lies on %q", file, p.Title, taken[y][x])
					}
					taken[y][x] = p.Title
				}
			}
			if p.Type != "row" && (p.Title == "" || p.Description == "" || len(p.Targets) == 0 || !hasUnit(p)) {
				t.Errorf("%s: panel %q lacks a title, a description, a query or a unit", file, p.Title)
			}
		}
	}
}

func hasUnit(p grafana.Panel) bool {
	if p.Type == "table" {
		return len(p.FieldConfig.Overrides) >= len(p.Targets)
	}
	return p.FieldConfig.Defaults.Unit != ""
}
