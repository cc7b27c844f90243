package command

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/operator/render"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/report"
)

func newLint(g *globals) *cobra.Command {
	fix, o := false, newCheck()
	c := &cobra.Command{
		Use:   "lint PATH...",
		Short: "Check manifests before they are applied",
		Long: `Checks manifests as the API server and the operator do, without a cluster. A
finding has a severity, file, line, object, field, problem and remedy:

  error    something would not be in force: an unknown or duplicate field, a value
           that a CRD does not allow, an API version that is not served, a listener
           or route that the operator would refuse, a reference to nothing
  warning  an outdated notation, or a credential that can be guessed or read
  remark   input without effect, or something that cannot be checked because it is
           not in the manifests, such as the Services of media servers and Secrets

A PATH is a file, a folder with its direct subfolders, or - for the standard
input. A folder with a kustomization.yaml is built as by kubectl kustomize.

Of the GatewayClass, GatewayConfig and Dataplane of the chart, those that the
manifests refer to and do not contain are added, with a remark.

The exit code is 1 if there is a finding of the severity of --fail-on. The JSON
schema of -o json is docs/lint.schema.json.`,
		Example: `  stunnerctl lint manifests/
  stunnerctl lint --fix gateway.yaml
  stunnerctl lint overlays/production -o json --fail-on warning`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if fix && slices.Contains(paths, manifests.Stdin) {
				return usageError{fmt.Errorf("--fix changes files: give a file or folder instead of %s", manifests.Stdin)}
			}
			units, err := manifests.Read(paths, g.In)
			if err != nil {
				return err
			}
			_, findings := o.run(units)
			if fix {
				if findings, err = fixed(findings, g.Streams); err != nil {
					return err
				}
			}
			if p := g.printer(); p.IsTable() {
				err = report.PrintFindings(g.Out, findings, g.style(p))
			} else {
				err = p.Value(lintOutput(findings, o.failed(findings)))
			}
			if err != nil {
				return err
			}
			return o.failed(findings)
		},
	}
	c.Flags().BoolVar(&fix, "fix", false, "put numbers and booleans in annotations, labels and stringData in quotes")
	o.addFlags(c.Flags())
	return c
}

// linted is the JSON output of lint.
type linted struct {
	Version  string              `json:"version"`
	Verdict  string              `json:"verdict"`
	Findings []manifests.Finding `json:"findings"`
}

func lintOutput(findings []manifests.Finding, failed error) linted {
	l := linted{Version: manifests.Version, Verdict: "pass", Findings: findings}
	if failed != nil {
		l.Verdict = "fail"
	}
	if findings == nil {
		l.Findings = []manifests.Finding{}
	}
	return l
}

// fixed puts quotes around the scalars that need them, in their files. It returns the other findings.
func fixed(findings []manifests.Finding, io Streams) (left []manifests.Finding, err error) {
	places := map[string][]render.Span{}
	for _, f := range findings {
		if f.Quotable == nil {
			left = append(left, f)
			continue
		}
		places[f.File] = append(places[f.File], *f.Quotable)
		fmt.Fprintf(io.ErrOut, "fixed: %s:%d: %s is in quotes\n", output.Clean(f.File), f.Line, output.Clean(f.Field))
	}
	for _, file := range slices.Sorted(maps.Keys(places)) {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, manifests.Quote(text, places[file]), info.Mode().Perm()); err != nil {
			return nil, err
		}
	}
	return left, nil
}
