package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// answer is the answer of one pod.
type answer[T any] struct {
	gateway, pod string
	value        T
	// If the pod did not answer, problem is set and the value is not. code is its HTTP status, or 0.
	problem string
	code    int
}

// atOnce is the number of Gateways that are asked at a time. The operator serves four requests of one client at a time.
const atOnce = 4

// listenerOf returns the name of a listener in its Gateway. In configs, listeners are GATEWAY/NAME.
func listenerOf(gateway, listener string) string { return strings.TrimPrefix(listener, gateway+"/") }

// ask asks the pods of the Gateways. It prints a note for each pod and Gateway that gave no answer. It returns an error
// if no request about a Gateway succeeded, and errChecksFailed if answers are missing.
func ask[T any](
	ctx context.Context, g *globals, s connect.Source, gateways []types.NamespacedName, r connect.Request,
) ([]answer[T], error) {
	lists, errs := make([]inspection.List, len(gateways)), make([]error, len(gateways))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, gateway := range gateways {
		group.Go(func() error {
			request := r
			request.Gateway = gateway
			if listener := r.Query.Get("listener"); listener != "" && !strings.Contains(listener, "/") {
				request.Query = maps.Clone(r.Query)
				request.Query.Set("listener", gateway.String()+"/"+listener)
			}
			lists[i], errs[i] = s.Ask(ctx, request)
			return nil
		})
	}
	_ = group.Wait()
	failed := 0
	for i, err := range errs {
		if err != nil {
			errs[i], failed = fmt.Errorf("gateway %s: %w", gateways[i], err), failed+1
		}
	}
	if failed == len(gateways) {
		return nil, errors.Join(errs[:min(len(errs), 3)]...)
	}
	var answers []answer[T]
	partly := failed > 0
	for i, list := range lists {
		if errs[i] != nil {
			g.note("%v", errs[i])
			continue
		}
		for _, why := range list.Incomplete {
			g.note("Gateway %s: no answer from %s", gateways[i], why)
			partly = true
		}
		for _, item := range list.Items {
			answers = append(answers, answerOf[T](gateways[i].String(), item))
		}
	}
	if partly {
		return answers, errChecksFailed
	}
	return answers, nil
}

func answerOf[T any](gateway string, item inspection.Item) answer[T] {
	a := answer[T]{gateway: gateway, pod: item.Pod, code: item.Status}
	var refusal inspection.Error
	switch {
	case item.Error != "":
		a.problem = item.Error
	case item.Status != http.StatusOK:
		_ = json.Unmarshal(item.Body, &refusal)
		a.problem = fmt.Sprintf("%d %s: %s", item.Status, http.StatusText(item.Status), refusal.Message)
	default:
		if err := json.Unmarshal(item.Body, &a.value); err != nil {
			a.problem = "the answer cannot be read: " + err.Error()
		}
	}
	return a
}

// askAll is ask for commands that print only values: it prints a note for each pod without a value, and returns
// errChecksFailed.
func askAll[T any](
	ctx context.Context, g *globals, s connect.Source, gateways []types.NamespacedName, r connect.Request,
) ([]answer[T], error) {
	answers, err := ask[T](ctx, g, s, gateways, r)
	for _, a := range answers {
		if a.problem != "" {
			g.note("Gateway %s: pod %s: %s", a.gateway, a.pod, a.problem)
			err = errChecksFailed
		}
	}
	return slices.DeleteFunc(answers, func(a answer[T]) bool { return a.problem != "" }), err
}

// filters are the flags that select entries of a list.
type filters struct {
	listener, user, client, reason, since, pod string
	limit                                      int
}

func (f *filters) addFlags(g *globals, c *cobra.Command, what string, withReason bool) {
	flags := c.Flags()
	flags.StringVar(&f.listener, "listener", "", "only "+what+" of this listener")
	flags.StringVarP(
		&f.user,
		"user",
		"u",
		"",
		"only "+what+" of this user: the plain name, or the hash that is printed",
	)
	flags.StringVar(&f.client, "client", "", "only "+what+" of this client: an IP address, or the hash that is printed")
	flags.StringVar(&f.since, "since", "", "only "+what+" since a time: a duration such as 10m, or RFC 3339")
	flags.StringVar(&f.pod, "pod", "", "only "+what+" of this pod")
	flags.IntVar(&f.limit, "limit", inspection.DefaultLimit,
		fmt.Sprintf("at most this many %s of each pod, 1 to %d", what, inspection.MaxLimit))
	if withReason {
		flags.StringVar(&f.reason, "reason", "", "only "+what+" with this reason, such as peer_denied")
	}
	_ = c.RegisterFlagCompletionFunc("listener", g.completeListeners)
}

func (f *filters) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{
		"listener": f.listener, "user": f.user, "client": f.client, "reason": f.reason, "since": f.since,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.limit != 0 {
		query.Set("limit", strconv.Itoa(f.limit))
	}
	return query
}

// listAnswers asks the pods of the named Gateways, and calls show with the answers of the pods that the filters select.
// If watching is set, it does so repeatedly. The argument several of show is true if there is more than one Gateway.
func listAnswers[T any](
	c *cobra.Command, g *globals, names []string, path string, f *filters, watching bool,
	show func(p *output.Printer, answers []answer[T], several bool) error,
) error {
	s, err := g.open()
	if err != nil {
		return err
	}
	return g.watch(c.Context(), watching, func(ctx context.Context, p *output.Printer) error {
		gateways, err := g.gateways(ctx, s, names)
		if err != nil {
			return err
		}
		answers, err := askAll[T](ctx, g, s, gateways, connect.Request{Path: path, Query: f.query()})
		if err != nil && !errors.Is(err, errChecksFailed) {
			return err
		}
		answers = slices.DeleteFunc(answers, func(a answer[T]) bool { return f.pod != "" && f.pod != a.pod })
		return cmp.Or(show(p, answers, len(gateways) > 1), err)
	})
}

// check checks the values of the flags, so that wrong values are usage errors.
func (f *filters) check(g *globals, known ...string) error {
	if _, err := inspection.ParseFilter(f.query(), g.now(), known...); err != nil {
		return usagef("--%w", err)
	}
	return nil
}
