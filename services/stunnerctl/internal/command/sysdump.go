package command

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/sysdump"
)

func newSysdump(g *globals) *cobra.Command {
	var file string
	withLogs := true
	c := &cobra.Command{
		Use:   "sysdump",
		Short: "Collect what a bug report needs",
		Long: `Writes an archive with the objects of STUNner and of what its Gateways lead to,
their events, the answers of operator and dataplanes, and the logs of operator,
dataplanes and auth service. Of the backends of routes it contains the Services
and EndpointSlices, and not the pods.

Secrets are not read. Secrets in other objects and in logs are removed: fields,
flags and variables with the name of a secret, credentials in URLs, tokens and
private keys. User names and client addresses in answers and in the fields of
log lines are hashes, which are the same within an archive. What you may not read
is listed in the file problems.txt of the archive.

Look through the archive before you publish it: names, images and addresses of
the cluster are in it.`,
		Example: `  stunnerctl sysdump

  # One namespace, without logs
  stunnerctl sysdump -n media --logs=false --file media.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := g.open()
			if err != nil {
				return err
			}
			now := g.now()
			name := cmp.Or(file, "stunner-sysdump-"+now.UTC().Format("20060102-150405")+".tar.gz")
			out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("--file: %w", err)
			}
			g.progress("collecting objects, answers and logs")
			err = sysdump.Write(c.Context(), out, s, sysdump.Options{
				Namespace: *g.kube.Namespace, Logs: withLogs, Now: now, Version: telemetry.Version("stunnerctl"),
				Controls: func(controller string) bool { return connect.Controls(g.controllerName, controller) },
			})
			if err = cmp.Or(err, out.Close()); err != nil {
				_ = os.Remove(name)
				return err
			}
			fmt.Fprintln(g.Out, name)
			return nil
		},
	}
	c.Flags().StringVar(&file, "file", "", "archive to write, which must not exist; empty is a name with the time in it")
	c.Flags().BoolVar(&withLogs, "logs", true, "include the logs of pods")
	return c
}
