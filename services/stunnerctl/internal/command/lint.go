package command

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/render"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
)

func newLint(g *globals) *cobra.Command {
	fix := false
	c := &cobra.Command{
		Use:   "lint PATH...",
		Short: "Check manifests",
		Long: `Checks manifests as the API server and the operator do, without a cluster: syntax,
unknown and duplicate fields, values that a CRD does not allow, annotations and
labels without quotes, notations that are accepted but outdated, and credentials
that can be guessed.

A PATH is a file, a folder with its direct subfolders, or - for the standard
input. The exit code is 1 if the API server would reject a document. References
to objects outside of the manifests are not checked: see stunnerctl render.`,
		Example: `  stunnerctl lint manifests/
  stunnerctl lint --fix gateway.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			if g.format != "" {
				return usagef("-o %s: lint prints text: leave the flag out", g.format)
			}
			if fix && slices.Contains(paths, manifests.Stdin) {
				return usageError{fmt.Errorf("--fix changes files: give a file or folder instead of %s", manifests.Stdin)}
			}
			return lint(paths, fix, g.Streams)
		},
	}
	c.Flags().BoolVar(&fix, "fix", false, "put numbers and booleans in annotations, labels and stringData in quotes")
	return c
}

func lint(paths []string, fix bool, io Streams) error {
	files, err := manifests.Read(paths, io.In)
	if err != nil {
		return err
	}
	o := render.DefaultOptions()
	o.Now = metav1.NewTime(time.Now())
	result := render.Files(files, o)
	problems := result.Problems
	if fix {
		if problems, err = fixed(files, problems, io); err != nil {
			return err
		}
	}
	for i, p := range problems {
		if p.Unquoted != nil { // a remark for the operator, but an error for the API server
			problems[i].Severity = render.Error
		}
	}
	failed := printProblems(io.Out, problems)
	for _, s := range result.Statuses {
		for _, w := range render.Warnings(s) {
			fmt.Fprintf(io.Out, "warning: %s %s: %s: %s\n", s.Object.GetObjectKind().GroupVersionKind().Kind,
				nameOf(s.Object), w.Type, w.Message)
		}
	}
	return failed
}

// fixed puts quotes around the scalars that need them, in their files. It returns the other problems.
func fixed(files map[string][]byte, problems []render.Problem, io Streams) (left []render.Problem, err error) {
	places := map[string][]render.Span{}
	for _, p := range problems {
		if p.Unquoted == nil {
			left = append(left, p)
			continue
		}
		places[p.File] = append(places[p.File], *p.Unquoted)
		fmt.Fprintf(io.Out, "fixed: %s:%d: %s is in quotes\n", p.File, p.Line, p.Field)
	}
	for _, file := range slices.Sorted(maps.Keys(places)) {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, manifests.Quote(files[file], places[file]), info.Mode().Perm()); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// nameOf returns NAMESPACE/NAME, or NAME for a cluster-scoped object.
func nameOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
