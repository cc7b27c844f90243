package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/operator/render"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
)

// renderParts are the values of render --show.
var renderParts = []string{"objects", "configs", "statuses"}

type renderOptions struct {
	show        []string
	dir         string
	showSecrets bool
	operator    render.Options
}

func newRender(g *globals) *cobra.Command {
	o := renderOptions{operator: render.DefaultOptions()}
	c := &cobra.Command{
		Use:   "render PATH...",
		Short: "Print what the operator makes of manifests",
		Long: `Prints the objects, dataplane configs and statuses that the operator in a cluster
makes of manifests, without a cluster.

A PATH is a file, a folder with its direct subfolders, or - for the standard
input. The manifests must contain everything that the Gateways refer to:
GatewayClass, GatewayConfig, Dataplane, Secrets, and the Services of media servers
with their EndpointSlices. What is missing is a condition in the statuses, as in a
cluster.

The output is YAML. The exit code is 1 if a document is invalid.`,
		Example: `  # what would change in the cluster
  stunnerctl render manifests/ --show objects | kubectl diff -f -

  # a file for each object, config and status, for reviews
  stunnerctl render manifests/ --to rendered/`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			if g.format != "" && g.format != "yaml" {
				return usagef("-o %s: render prints YAML: leave the flag out", g.format)
			}
			o.showSecrets = g.showSecrets
			return o.run(paths, g.Streams)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.show, "show", renderParts, "the parts to print: objects, configs, statuses")
	f.StringVar(&o.dir, "to", "", "folder to write a file for each object, config and status to, instead of printing them")
	f.StringVar(&o.operator.ControllerName, "controller-name", o.operator.ControllerName,
		"controller name of the GatewayClasses to translate")
	f.StringVar(&o.operator.Image, "image", o.operator.Image, "image of dataplane pods of a Dataplane without image")
	f.StringVar(&o.operator.DiscoveryAddress, "discovery-url", o.operator.DiscoveryAddress,
		"URL of config discovery in generated objects; http means --discovery-auth=off of the operator")
	return c
}

// document is a part of the output of render.
type document struct {
	part string
	path []string // of its file in the folder of --to, without extension
	body any
}

func (o renderOptions) run(paths []string, io Streams) error {
	for _, part := range o.show {
		if !slices.Contains(renderParts, part) {
			return usageError{fmt.Errorf("--show %q: use %s", part, strings.Join(renderParts, ", "))}
		}
	}
	files, err := manifests.Read(paths, io.In)
	if err != nil {
		return err
	}
	o.operator.Now = metav1.NewTime(time.Now())
	o.operator.DiscoverySecured = !strings.HasPrefix(o.operator.DiscoveryAddress, "http:")
	result := render.Files(files, o.operator)
	documents, err := o.documents(result)
	if err != nil {
		return err
	}
	if o.dir != "" {
		err = writeDocuments(o.dir, documents)
	} else {
		err = printDocuments(io.Out, documents)
	}
	if err != nil {
		return err
	}
	return printProblems(io.ErrOut, result.Problems)
}

// documents returns the parts of the result that are shown.
func (o renderOptions) documents(result render.Result) (all []document, err error) {
	for _, object := range result.Objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		delete(fields, "status")
		kind := strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind)
		all = append(all, document{"objects", []string{object.GetNamespace(), kind + "-" + object.GetName()}, fields})
	}
	for _, c := range result.Configs {
		if !o.showSecrets {
			c = c.Redacted()
		}
		all = append(all, document{"configs", strings.Split(c.Admin.Name, "/"), c})
	}
	for _, s := range result.Statuses {
		apiVersion, kind := s.Object.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		metadata := map[string]any{"name": s.Object.GetName()}
		if namespace := s.Object.GetNamespace(); namespace != "" {
			metadata["namespace"] = namespace
		}
		all = append(all, document{
			"statuses",
			[]string{s.Object.GetNamespace(), strings.ToLower(kind) + "-" + s.Object.GetName()},
			map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata, "status": s.Status},
		})
	}
	return slices.DeleteFunc(all, func(d document) bool { return !slices.Contains(o.show, d.part) }), nil
}

func printDocuments(out io.Writer, documents []document) error {
	for i, d := range documents {
		text, err := yaml.Marshal(d.body)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// writeDocuments writes each document to DIR/PART/NAMESPACE/NAME.yaml, unless the file has this content already.
func writeDocuments(dir string, documents []document) error {
	for _, d := range documents {
		text, err := yaml.Marshal(d.body)
		if err != nil {
			return err
		}
		path := filepath.Join(append([]string{dir, d.part}, d.path...)...) + ".yaml"
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// printProblems prints problems, one a line. It returns errChecksFailed if one of them is an error.
func printProblems(out io.Writer, problems []render.Problem) (failed error) {
	for _, p := range problems {
		fmt.Fprintf(out, "%s: %s\n", strings.ToLower(string(p.Severity)), p)
		if p.Severity == render.Error {
			failed = errChecksFailed
		}
	}
	return failed
}
