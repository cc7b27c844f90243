package main

import (
	"bytes"
	"os"
	"testing"

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
