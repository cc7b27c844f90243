// Package boards asks a Prometheus what the Grafana boards of dashboards/ ask it.
package boards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Questions are queries by where they stand: board, panel, and which of its queries.
type Questions map[string]string

// Read collects the queries of all boards, as Grafana sends them when all of everything is chosen.
func Read(root string) (Questions, error) {
	files, err := filepath.Glob(filepath.Join(root, "dashboards/*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("read boards below %s: there are %d, %w", root, len(files), err)
	}
	all := Questions{}
	for _, file := range files {
		if err := all.add(file); err != nil {
			return nil, fmt.Errorf("read board: %w", err)
		}
	}
	return all, nil
}

func (q Questions) add(file string) error {
	var b struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
		Annotations struct{ List []struct{ Name, Expr string } }
		Templating  struct {
			List []struct{ Name, Query string }
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &b); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	name := strings.TrimPrefix(b.Title, "STUNner / ") + " / "
	for _, p := range b.Panels {
		for _, one := range p.Targets {
			q[name+p.Title+": "+one.RefID] = filled(one.Expr)
		}
	}
	for _, a := range b.Annotations.List {
		q[name+a.Name] = filled(a.Expr)
	}
	for _, v := range b.Templating.List {
		if match := labelValues.FindStringSubmatch(v.Query); match != nil {
			q[name+"$"+v.Name] = filled("count by (" + match[2] + ") (" + match[1] + ")")
		}
	}
	return nil
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

func filled(expr string) string {
	return strings.NewReplacer("$__rate_interval", "15s", "$namespace", ".*", "$gateway", ".*", "$pod", ".*").Replace(expr)
}

// Silent are the panels without data, or one query of a panel, each with the reason.
type Silent map[string]string

func (s Silent) reason(where string) string {
	panel, _, _ := strings.Cut(where, ": ")
	if why := s[panel]; why != "" {
		return why
	}
	return s[where]
}

// Unanswered asks what has not been answered yet, forgets what is answered now, and is an error as long as something is left that should not be silent.
func (q Questions) Unanswered(ctx context.Context, p Prometheus, silent Silent) error {
	var open []error
	for where, expr := range q {
		if silent.reason(where) != "" {
			continue
		}
		if n, err := p.Results(ctx, expr); err != nil || n == 0 {
			open = append(open, fmt.Errorf("%s: %d results, %v: %s", where, n, err, expr))
			continue
		}
		delete(q, where)
	}
	return errors.Join(open...)
}

// Unexpected is an error when something is silent no more, and does not belong among the silent, or is not there at all. It is for questions that
// have been asked as long as they are open.
func (q Questions) Unexpected(ctx context.Context, p Prometheus, silent Silent) error {
	var broken []error
	for where, expr := range q {
		if n, err := p.Results(ctx, expr); err != nil || n > 0 {
			broken = append(broken, fmt.Errorf("%s: %d results, %v, although %s", where, n, err, silent.reason(where)))
		}
	}
	all := slices.Collect(maps.Keys(q))
	for panel := range silent {
		if !slices.ContainsFunc(all, func(where string) bool { return where == panel || strings.HasPrefix(where, panel+": ") }) {
			broken = append(broken, fmt.Errorf("there is no %q", panel))
		}
	}
	return errors.Join(broken...)
}
