// Package command contains the commands of stunnerctl, one file a command. A command reads its flags, calls one of the
// other packages, and prints the result.
//
// # Files
//
//	root.go         the list of commands
//	globals.go      flags of all commands
//	complete.go     completion
//	answers.go      answers of pods, and the flags that filter them
//	listeners.go    listeners and credentials for TURN clients
//	former_test.go  command lines of the existing system
package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// Streams are the input and the outputs of a command.
type Streams = genericiooptions.IOStreams

// Exit codes.
const (
	exitFailed      = 1   // a check or the operation failed
	exitUsage       = 2   // wrong command line
	exitInterrupted = 130 // Ctrl-C, as shells report it: 128 and the number of SIGINT
)

// errChecksFailed ends a command whose output already names the failed checks.
var errChecksFailed = errors.New("a check failed")

// usageError is an error of the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Run executes the command line args, whose first element is the name of the program, and returns the exit code.
func Run(ctx context.Context, args []string, io Streams) int {
	root := newRoot(programName(args[0]), io)
	root.SetArgs(args[1:])
	if filepath.Base(args[0]) == "turncat" { // the program of the existing system has this name
		root.SetArgs(append([]string{"turncat"}, args[1:]...))
	}
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	interrupted := ctx.Err() != nil
	if !errors.Is(err, errChecksFailed) && !(interrupted && errors.Is(err, context.Canceled)) {
		fmt.Fprintf(io.ErrOut, "%s: %s\n", programName(args[0]), output.CleanText(err.Error()))
	}
	switch {
	case interrupted:
		return exitInterrupted
	case errors.As(err, new(usageError)):
		return exitUsage
	}
	return exitFailed
}

// programName returns the name of the program in help texts: "kubectl stunner" if it was started as a plugin.
func programName(path string) string {
	if strings.HasPrefix(filepath.Base(path), "kubectl-") {
		return "kubectl stunner"
	}
	return "stunnerctl"
}

const rootLong = `stunnerctl shows and tests the TURN gateways of STUNner.

It asks the operator, which asks the dataplane pods over the connections that
they keep. In a cluster it uses your kubeconfig and your rights, and reads no
Secret. Without a cluster, use --operator URL for an operator at a URL, or
--folder OUTPUT for the output folder of a file provider.

A Gateway is NAMESPACE/NAME, or NAME in the namespace of -n.

Exit codes are 0, 1 for a failed check or operation, 2 for a wrong command line
and 130 after Ctrl-C, unless Ctrl-C is the normal end, as with --watch.`

func newRoot(name string, io Streams) *cobra.Command {
	g := newGlobals(io)
	root := &cobra.Command{
		Use:               "stunnerctl",
		Short:             "Inspect and test STUNner gateways",
		Long:              rootLong,
		Args:              cobra.ArbitraryArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: name},
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return g.check(c) },
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q%s: see %s --help", args[0], suggestions(c, args[0]), name)
			}
			return c.Help()
		},
	}
	root.Version = telemetry.Version("stunnerctl")
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(io.In)
	root.SetOut(io.Out)
	root.SetErr(io.ErrOut)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w: see %s --help", err, c.CommandPath())
	})
	g.addFlags(root)
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Look:", []*cobra.Command{
			newConfig(g),
			newRefusals(g),
			newSessions(g),
			newStatus(g),
		}},
		{"Check:", []*cobra.Command{
			newCanReach(g),
			newDoctor(g),
			newIcetest(g),
			newLint(g),
			newRender(g),
			newWhy(g),
		}},
		{"Change:", []*cobra.Command{
			newDrain(g),
			newKick(g),
		}},
		{"Tools:", []*cobra.Command{
			newAuth(g),
			newCred(g),
			newLicense(g),
			newReference(io),
			newSysdump(g),
			newTurncat(g),
			newVersion(g),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, c := range group.commands {
			c.GroupID = group.title
			root.AddCommand(c)
		}
		root.SetHelpCommandGroupID(group.title) // the loop ends with the last group
		root.SetCompletionCommandGroupID(group.title)
	}
	for _, c := range root.Commands() {
		asUsageErrors(c)
	}
	return root
}

// asUsageErrors makes wrong numbers of arguments usage errors.
func asUsageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usagef("%w: usage: %s", err, c.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		asUsageErrors(sub)
	}
}

func suggestions(c *cobra.Command, word string) string {
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(word); len(near) > 0 {
		return ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return ""
}
