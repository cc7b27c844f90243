package command

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/sysdump"
)

func newSysdump(g *globals) *cobra.Command {
	var file string
	withLogs := true
	c := &cobra.Command{
		Use:   "sysdump",
		Short: "Collect what a bug report needs",
		Long: `Writes an archive with the objects and events of STUNner and its Gateways, the
answers of operator and dataplanes, and the logs of all their pods.

Secrets are not read, and secrets in other objects and in logs are removed. User
names and client addresses are hashes, unless a dataplane runs with
--show-users. What you may not read is listed in the file problems.txt of the
archive. Look through the archive before you publish it: names, images and
addresses of the cluster are in it.`,
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
