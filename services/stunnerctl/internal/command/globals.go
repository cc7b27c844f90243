package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/klog/v2"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// globals are the flags of all commands.
type globals struct {
	Streams
	kube *genericclioptions.ConfigFlags

	allNamespaces     bool
	format            string
	noHeaders         bool
	noColor           bool
	showSecrets       bool
	verbose           bool
	log               string
	operatorURL       string
	operatorNamespace string
	tokenFile, caFile string
	folder            string
	controllerName    string

	now func() time.Time
}

// clock is the clock of the commands; tests replace it.
var clock = time.Now

func newGlobals(io Streams) *globals {
	kube := genericclioptions.NewConfigFlags(true).WithWarningPrinter(io)
	return &globals{Streams: io, kube: kube, now: clock}
}

// former are the global flags of the existing system that have no effect in this program, with their replacements.
var former = map[string]string{
	"cds-server-address": "the operator is found by its pods: use --operator URL with --ca-file for another address",
	"cds-server-port":    "the operator is found by its pods: use --operator URL with --ca-file for another port",
}

func (g *globals) addFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "all namespaces instead of one")
	f.StringVarP(&g.format, "output", "o", "", "output format: "+output.Formats+" (summary is table)")
	f.BoolVar(&g.noHeaders, "no-headers", false, "print tables without headers")
	f.BoolVar(&g.noColor, "no-color", false, "print no colours; so does the environment variable NO_COLOR")
	f.BoolVar(&g.showSecrets, "show-secrets", false, "print passwords and secrets instead of <redacted>")
	f.BoolVarP(&g.verbose, "verbose", "v", false, "print progress and requests to the standard error output")
	f.StringVarP(&g.log, "log", "l", "all:WARN", "log level, SCOPE:LEVEL[,SCOPE:LEVEL…]; DEBUG is --verbose")
	f.StringVar(
		&g.operatorURL,
		"operator",
		"",
		"URL of config discovery at an operator, https://HOST:PORT, instead of a "+
			"cluster",
	)
	f.StringVar(&g.tokenFile, "token-file", "", "file with the bearer token for --operator")
	f.StringVar(&g.caFile, "ca-file", "", "file with the CA certificates of --operator, in PEM")
	f.StringVar(&g.folder, "folder", "", "output folder of a file provider, instead of a cluster")
	f.StringVar(&g.operatorNamespace, "operator-namespace", "", "namespace of the operator; empty means "+
		connect.DefaultOperatorNamespace+", or the one in which an account that may update the status of GatewayClasses runs it")
	f.StringVar(&g.controllerName, "controller-name", "", "controller name of the GatewayClasses whose Gateways are "+
		"listed; empty means any name that starts with "+connect.ControllerPrefix)

	// -A is the short form of kubectl, -a the short form of the existing system.
	f.BoolVarP(&g.allNamespaces, "all-namespaces-a", "a", false, "same as --all-namespaces")
	f.StringVar(&g.log, "loglevel", "all:WARN", "same as --log")
	f.StringVar(&g.operatorNamespace, "cds-server-namespace", "", "same as --operator-namespace")
	f.StringVar(g.kube.AuthInfoName, "kube-user", "", "the name of the kubeconfig user to use, as --user of kubectl")
	for name := range former {
		f.String(name, "", "of the existing system; not supported")
	}
	for _, name := range []string{"all-namespaces-a", "loglevel", "cds-server-namespace", "cds-server-address", "cds-server-port"} {
		_ = f.MarkHidden(name) // the flag exists
	}
	g.kube.AddFlags(f)
	for _, name := range []string{
		"as", "as-uid", "as-group", "as-user-extra", "cache-dir", "certificate-authority", "client-certificate", "client-key",
		"cluster", "disable-compression", "insecure-skip-tls-verify", "request-timeout", "server", "tls-server-name", "token",
		"user", "kube-user",
	} {
		_ = f.MarkHidden(name) // kubectl options describes them
	}
	f.Lookup("namespace").Usage = "namespace of names without one; empty means that of the kubeconfig"
	f.Lookup("kubeconfig").Usage = "kubeconfig file; empty means $KUBECONFIG or ~/.kube/config"
	f.Lookup("context").Usage = "context of the kubeconfig"
	_ = root.RegisterFlagCompletionFunc(
		"output",
		func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"table", "wide", "json", "yaml", "jsonpath="}, cobra.ShellCompDirectiveNoFileComp
		},
	)
	_ = root.RegisterFlagCompletionFunc("namespace", g.completeNamespaces)
	_ = root.MarkPersistentFlagDirname("folder")
}

// check checks the flags before a command runs.
func (g *globals) check(c *cobra.Command) error {
	for name, instead := range former {
		if f := c.Flags().Lookup(name); f != nil && f.Changed {
			return usagef("--%s: %s", name, instead)
		}
	}
	if _, err := output.New(g.Out, g.format, g.noColor); err != nil {
		return usageError{err}
	}
	levels := strings.ToUpper(g.log)
	g.verbose = g.verbose || strings.Contains(levels, ":DEBUG") || strings.Contains(levels, ":TRACE")
	if !g.verbose {
		klog.SetLogger(logr.Discard()) // client-go logs errors of forwarded ports, which are returned as well
		return nil
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	return flags.Set("v", "6") // logs every request
}

// printer returns the printer of the flag -o.
func (g *globals) printer() *output.Printer {
	p, err := output.New(g.Out, g.format, g.noColor)
	if err != nil {
		panic(err) // check has called it before
	}
	p.NoHeaders = g.noHeaders
	return p
}

// open returns the source of the flags. Errors are usage errors.
func (g *globals) open() (connect.Source, error) {
	s, err := connect.Open(connect.Options{
		Folder: g.folder, URL: g.operatorURL, TokenFile: g.tokenFile, CAFile: g.caFile, Token: *g.kube.BearerToken,
		Kube: g.kube, OperatorNamespace: g.operatorNamespace, ControllerName: g.controllerName, Progress: g.progress,
	})
	if err != nil {
		return nil, usageError{err}
	}
	return s, nil
}

// progress prints a line about a long operation, if output and error output are terminals or the command is verbose.
func (g *globals) progress(text string) {
	if g.verbose || isTerminal(g.ErrOut) && isTerminal(g.Out) {
		g.note("%s …", text)
	}
}

// note prints a line to the standard error output.
func (g *globals) note(format string, args ...any) {
	fmt.Fprintln(g.ErrOut, output.Clean(fmt.Sprintf(format, args...)))
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// namespace returns the default namespace of names: the namespace of -n, or of the kubeconfig, or "default".
func (g *globals) namespace() string {
	if *g.kube.Namespace != "" {
		return *g.kube.Namespace
	}
	if g.folder == "" && g.operatorURL == "" {
		if namespace, _, err := g.kube.ToRawKubeConfigLoader().Namespace(); err == nil {
			return namespace
		}
	}
	return "default"
}

// parseName parses NAMESPACE/NAME, or NAME in the namespace of -n.
func (g *globals) parseName(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		namespace, name = g.namespace(), text
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, usagef("%q: name a Gateway as NAMESPACE/NAME, or as NAME with -n", text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// gateways returns the named Gateways. Without names, it returns the Gateways of the namespace, or with -A the Gateways
// of all namespaces.
func (g *globals) gateways(ctx context.Context, s connect.Source, names []string) ([]types.NamespacedName, error) {
	if len(names) > 0 {
		if g.allNamespaces {
			return nil, usagef("-A and the name of a Gateway: use one of them")
		}
		var found []types.NamespacedName
		for _, text := range names {
			name, err := g.parseName(text)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
		return found, nil
	}
	namespace := g.namespace()
	_, inCluster := s.(*connect.Cluster)
	if g.allNamespaces || !inCluster && *g.kube.Namespace == "" {
		namespace = ""
	}
	found, err := s.Gateways(ctx, namespace)
	if err == nil && len(found) == 0 {
		var hints []string
		if namespace != "" {
			hints = append(hints, "-A for all namespaces")
		}
		if inCluster && g.controllerName == "" {
			hints = append(hints, "--controller-name if that of the operator does not start with "+connect.ControllerPrefix)
		}
		text := "no Gateway of STUNner in " + cmp.Or(namespace, "all namespaces")
		if len(hints) > 0 {
			text += ": use " + strings.Join(hints, ", or ")
		}
		return nil, errors.New(text)
	}
	return found, err
}

// completesGateways adds the completion of Gateway names to a command. most is the maximum number of names; 0 means no
// maximum.
func (g *globals) completesGateways(c *cobra.Command, most int) *cobra.Command {
	c.ValidArgsFunction = func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return g.completeGateways(c, args, word)
	}
	return c
}

// watchInterval is the time between two readings of --watch.
const watchInterval = 2 * time.Second

// watch calls show once. If watching is set, it calls show repeatedly until ctx ends, and then returns nil. On a
// terminal, each result replaces the previous result.
func (g *globals) watch(ctx context.Context, watching bool, show func(context.Context, *output.Printer) error) error {
	if !watching {
		return show(ctx, g.printer())
	}
	redraw := isTerminal(g.Out) && g.printer().IsTable()
	var last string
	for {
		var text strings.Builder
		p := g.printer() // the terminal may have a new size
		out := p.Out
		p.Out = &text
		err := show(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, new(usageError)) || connect.StatusOf(err)/100 == 4:
			return err
		case err != nil && !errors.Is(err, errChecksFailed):
			g.note("%v", err)
		case redraw:
			fmt.Fprint(out, "\x1b[H\x1b[2J"+text.String())
		case text.String() != last:
			fmt.Fprint(out, text.String())
		}
		last = text.String()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
	}
}
