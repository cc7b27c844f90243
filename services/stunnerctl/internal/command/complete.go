package command

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

// completionTimeout bounds the time that a shell waits for names.
const completionTimeout = 3 * time.Second

// complete calls list with the source of the flags. After an error it adds no names, because a shell cannot show the
// error; ShellCompDirectiveError would also suppress subcommands.
func (g *globals) complete(
	c *cobra.Command, list func(context.Context, connect.Source) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	s, err := g.open()
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer func() { _ = s.Close() }()
	names, err := list(ctx, s)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

func (g *globals) completeGateways(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return g.complete(c, func(ctx context.Context, s connect.Source) (names []string, err error) {
		_, inCluster := s.(*connect.Cluster)
		found, err := s.Gateways(ctx, "")
		own := g.namespace()
		if err != nil { // the user may not list all namespaces
			found, err = s.Gateways(ctx, own)
		}
		for _, gateway := range found {
			if names = append(names, gateway.String()); gateway.Namespace == own && inCluster {
				names = append(names, gateway.Name)
			}
		}
		return names, err
	})
}

// completeListeners completes listeners of the Gateway in the first argument.
func (g *globals) completeListeners(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return g.complete(c, func(ctx context.Context, s connect.Source) (names []string, err error) {
		if len(args) == 0 {
			return nil, nil
		}
		gateway, err := g.parseName(args[0])
		if err != nil {
			return nil, err
		}
		list, err := s.Ask(ctx, connect.Request{Gateway: gateway, Path: "status"})
		for _, item := range list.Items {
			var status inspection.Status
			if json.Unmarshal(item.Body, &status) == nil {
				for _, l := range status.Listeners {
					names = append(names, listenerOf(gateway.String(), l.Name))
				}
			}
		}
		return names, err
	})
}

// completePods completes the dataplane pods of the namespace.
func (g *globals) completePods(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return g.complete(c, func(ctx context.Context, s connect.Source) (names []string, err error) {
		cluster, ok := s.(*connect.Cluster)
		if !ok || len(args) > 0 {
			return nil, nil
		}
		pods, err := cluster.Client.CoreV1().
			Pods(g.namespace()).
			List(ctx, metav1.ListOptions{LabelSelector: podSelector})
		if err != nil {
			return nil, err
		}
		for _, pod := range pods.Items {
			names = append(names, pod.Name)
		}
		return names, nil
	})
}

func (g *globals) completeNamespaces(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return g.complete(c, func(ctx context.Context, s connect.Source) (names []string, err error) {
		found, err := s.Gateways(ctx, "")
		for _, gateway := range found {
			names = append(names, gateway.Namespace)
		}
		return names, err
	})
}
