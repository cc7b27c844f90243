// Package boards sends the queries of the Grafana boards in dashboards/ to a Prometheus, to prove that each returns
// data.
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

// Queries maps "BOARD / PANEL: QUERY" to a PromQL expression.
type Queries map[string]string

// Read collects the queries of all boards, with every template variable set to All.
func Read(root string) (Queries, error) {
	files, err := filepath.Glob(filepath.Join(root, "dashboards/*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("read boards below %s: found %d: %w", root, len(files), err)
	}
	all := Queries{}
	for _, file := range files {
		if err := all.add(file); err != nil {
			return nil, fmt.Errorf("read board: %w", err)
		}
	}
	return all, nil
}

func (q Queries) add(file string) error {
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
	return strings.NewReplacer(
		"$__rate_interval", "15s", "$namespace", ".*", "$gateway", ".*", "$pod", ".*",
	).Replace(expr)
}

// Silent maps a panel or one of its queries to the reason why it returns no data in a test.
type Silent map[string]string

func (s Silent) reason(where string) string {
	panel, _, _ := strings.Cut(where, ": ")
	if why := s[panel]; why != "" {
		return why
	}
	return s[where]
}

// Unanswered runs the queries, removes queries that return data, and returns an error that lists the others. It skips
// queries in silent. The caller calls Unanswered again until the error is nil: a query that has returned data once is
// not run again.
func (q Queries) Unanswered(ctx context.Context, p Prometheus, silent Silent) error {
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

// Unexpected returns an error for each query in silent that returns data, and for each entry of silent that matches no
// query. Call it after Unanswered, when only the silent queries are left.
func (q Queries) Unexpected(ctx context.Context, p Prometheus, silent Silent) error {
	var broken []error
	for where, expr := range q {
		if n, err := p.Results(ctx, expr); err != nil || n > 0 {
			broken = append(
				broken, fmt.Errorf("%s: %d results, %v, want no data, because %s", where, n, err, silent.reason(where)),
			)
		}
	}
	all := slices.Collect(maps.Keys(q))
	for panel := range silent {
		if !slices.ContainsFunc(
			all, func(where string) bool { return where == panel || strings.HasPrefix(where, panel+": ") },
		) {
			broken = append(broken, fmt.Errorf("no query has the name %q", panel))
		}
	}
	return errors.Join(broken...)
}
