package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/operator/render"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// renderParts are the values of render --show.
var renderParts = []string{"objects", "configs", "statuses"}

type renderOptions struct {
	show        []string
	dir         string
	showSecrets bool
	check
}

func newRender(g *globals) *cobra.Command {
	o := renderOptions{check: newCheck()}
	c := &cobra.Command{
		Use:   "render PATH...",
		Short: "Print what the operator makes of manifests",
		Long: `Prints the objects, dataplane configs and statuses that the operator in a cluster
makes of manifests, without a cluster.

A PATH is a file, a folder with its direct subfolders, or - for the standard
input. A folder with a kustomization.yaml is built as by kubectl kustomize. The
manifests must contain everything that the Gateways refer to: Secrets, and the
Services of media servers with their EndpointSlices. What is missing is a
condition in the statuses, as in a cluster. Of the GatewayClass, GatewayConfig and
Dataplane of the chart, those that are missing are added.

The output is YAML, or with -o json one object with the findings of stunnerctl
lint. The findings are also printed to the standard error, and decide the exit
code as for lint.`,
		Example: `  # what would change in the cluster
  stunnerctl render manifests/ --show objects | kubectl diff -f -

  # a file for each object, config and status, for reviews
  stunnerctl render manifests/ --to rendered/`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			if g.format != "" && g.format != output.FormatYAML && g.format != output.FormatJSON {
				return usagef("-o %s: use %s or %s", g.format, output.FormatYAML, output.FormatJSON)
			}
			o.showSecrets = g.showSecrets
			return o.render(paths, g)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.show, "show", renderParts, "the parts to print: objects, configs, statuses")
	f.StringVar(&o.dir, "to", "", "folder to write a file for each object, config and status to, instead of printing them")
	f.StringVar(&o.options.Image, "image", o.options.Image, "image of dataplane pods of a Dataplane without image")
	f.StringVar(&o.options.DiscoveryAddress, "discovery-url", o.options.DiscoveryAddress,
		"URL of config discovery in generated objects; http means --discovery-auth=off of the operator")
	o.addFlags(f)
	return c
}

// document is a part of the output of render.
type document struct {
	part string
	path []string // of its file in the folder of --to, without extension
	body any
}

func (o renderOptions) render(paths []string, g *globals) error {
	if err := o.validate(); err != nil {
		return err
	}
	for _, part := range o.show {
		if !slices.Contains(renderParts, part) {
			return usageError{fmt.Errorf("--show %q: use %s", part, strings.Join(renderParts, ", "))}
		}
	}
	asJSON := g.format == output.FormatJSON
	if asJSON && o.dir != "" {
		return usagef("-o json: --to writes YAML files: leave one of them out")
	}
	units, err := manifests.Read(paths, g.In)
	if err != nil {
		return err
	}
	o.options.DiscoverySecured = !strings.HasPrefix(o.options.DiscoveryAddress, "http:")
	results, findings := o.run(units)
	var documents []document
	for _, result := range results {
		some, err := o.documents(result)
		if err != nil {
			return err
		}
		documents = append(documents, some...)
	}
	switch {
	case o.dir != "":
		err = writeDocuments(o.dir, documents)
	case asJSON:
		err = g.printer().Value(renderOutput(documents, findings))
	default:
		err = printDocuments(g.Out, documents)
	}
	if err == nil {
		err = printFindings(g.ErrOut, findings)
	}
	if err != nil {
		return err
	}
	return o.failed(findings)
}

// rendered is the JSON output of render.
type rendered struct {
	Version  string              `json:"version"`
	Objects  []any               `json:"objects"`
	Configs  []any               `json:"configs"`
	Statuses []any               `json:"statuses"`
	Findings []manifests.Finding `json:"findings"`
}

func renderOutput(documents []document, findings []manifests.Finding) rendered {
	r := rendered{
		Version: manifests.Version, Objects: []any{}, Configs: []any{}, Statuses: []any{},
		Findings: append([]manifests.Finding{}, findings...),
	}
	for _, d := range documents {
		part := map[string]*[]any{"objects": &r.Objects, "configs": &r.Configs, "statuses": &r.Statuses}[d.part]
		*part = append(*part, d.body)
	}
	return r
}

// documents returns the parts of the result that --show selects.
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

// printFindings prints findings, one a line.
func printFindings(out io.Writer, findings []manifests.Finding) error {
	var b strings.Builder
	for _, f := range findings {
		if f.NotRead {
			continue
		}
		place := fmt.Sprintf("%s:%d", f.File, f.Line)
		parts := slices.DeleteFunc([]string{string(f.Severity), place, f.Object, f.Field, f.Problem, f.Remedy}, func(s string) bool {
			return s == ""
		})
		b.WriteString(output.Clean(strings.Join(parts, ": ")) + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
