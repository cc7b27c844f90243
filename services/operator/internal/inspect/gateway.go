package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// endpoint is a path below the path of a Gateway that pods answer.
type endpoint struct {
	method, path string
	kind         inspection.Kind
	rights       rights
}

var endpoints = []endpoint{
	{http.MethodGet, "status", inspection.Dataplane, rights{"get", "gateways"}},
	{http.MethodGet, "reach", inspection.Dataplane, rights{"get", "gateways"}},
	{http.MethodGet, "sessions", inspection.Dataplane, rights{"get", "gateways/sessions"}},
	{http.MethodDelete, "sessions", inspection.Dataplane, rights{"delete", "gateways/sessions"}},
	{http.MethodDelete, "sessions/{id}", inspection.Dataplane, rights{"delete", "gateways/sessions"}},
	{http.MethodGet, "refusals", inspection.Dataplane, rights{"get", "gateways/refusals"}},
	{http.MethodGet, "usage", inspection.Dataplane, rights{UsageRight.Verb, UsageRight.Resource}},
	{http.MethodGet, "grants", inspection.Auth, rights{"get", "gateways/sessions"}},
}

// target returns the path and the query of the request to pods.
func (e endpoint) target(r *http.Request) (string, error) {
	query := r.URL.Query()
	query.Del(localParameter)
	path := strings.Replace(e.path, "{id}", url.PathEscape(r.PathValue("id")), 1)
	if e.method == http.MethodDelete && e.path == "sessions" && query.Get("user") == "" && query.Get("client") == "" {
		return "", errorf(http.StatusBadRequest,
			"query: set user or client: without one of them all sessions of the Gateway would end")
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return "/" + path, nil
}

// serve returns the handler of an endpoint.
func (a *API) serve(e endpoint) func(http.ResponseWriter, *http.Request, call) error {
	return func(w http.ResponseWriter, r *http.Request, c call) error {
		target, err := e.target(r)
		if err != nil {
			return err
		}
		if e.method == http.MethodDelete && !c.local {
			a.Log.Info("sessions are ended by request", "gateway", c.id(), "caller", c.caller, "target", a.masked(target))
		}
		q := discovery.Query{ID: c.id(), Kind: e.kind, Method: e.method, Target: target}
		return a.answer(w, r, c, q, a.commonError)
	}
}

// serveAuth asks all auth services for their state. It is not an error if there are none.
func (a *API) serveAuth(w http.ResponseWriter, r *http.Request, c call) error {
	q := discovery.Query{Kind: inspection.Auth, Method: http.MethodGet, Target: "/status"}
	return a.answer(w, r, c, q, func(inspection.List) error { return nil })
}

// answer asks pods and writes their answers, or the error that refused returns for them.
func (a *API) answer(
	w http.ResponseWriter, r *http.Request, c call, q discovery.Query, refused func(inspection.List) error,
) error {
	if c.local { // the other replica waits for the header for replicaTimeout only
		writeHeader(w, http.StatusOK)
		_ = http.NewResponseController(w).Flush()
	}
	ctx, cancel := context.WithTimeout(r.Context(), podTimeout)
	defer cancel()
	list := a.collect(ctx, q, c)
	if c.local {
		return encodeList(w, list)
	}
	if err := refused(list); err != nil {
		return err
	}
	writeHeader(w, http.StatusOK)
	return encodeList(w, list)
}

// encodeList writes the body of an answer item by item, because an encoder keeps a copy of the value that it encodes.
// As with encode, its result is always nil.
func encodeList(w io.Writer, list inspection.List) error {
	const begin = `"items":[` // cannot occur inside a text, because quotes are escaped there
	items, frame := list.Items, &bytes.Buffer{}
	list.Items = []inspection.Item{}
	_ = encode(frame, list)
	before, after, _ := bytes.Cut(frame.Bytes(), []byte(begin))
	_, _ = io.WriteString(w, string(before)+begin)
	for i, item := range items {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		_ = encode(w, item)
	}
	_, _ = w.Write(after)
	return nil
}

// masked returns a target for logs, with hashes of the user and the client. Equal values have equal hashes in the log
// of this process.
func (a *API) masked(target string) string {
	path, raw, _ := strings.Cut(target, "?")
	query, err := url.ParseQuery(raw)
	if err != nil || len(query) == 0 {
		return path
	}
	for _, name := range []string{"user", "client"} {
		for i, value := range query[name] {
			query[name][i] = inspection.Hash(a.hashKey, name, value)
		}
	}
	return path + "?" + query.Encode()
}

// collect asks the pods of a Gateway that are connected to this replica, and unless c.local is set, also the pods that
// are connected to other replicas. It then adds the running dataplanes that no replica is connected to.
func (a *API) collect(ctx context.Context, q discovery.Query, c call) inspection.List {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		all   inspection.List
	)
	add := func(items []inspection.Item, incomplete []string) {
		mu.Lock()
		defer mu.Unlock()
		all.Items, all.Incomplete = append(all.Items, items...), append(all.Incomplete, incomplete...)
	}
	group.Go(func() { add(a.local(ctx, q), nil) })
	if !c.local {
		for _, replica := range a.Replicas() {
			group.Go(func() {
				list, err := a.Client.ask(ctx, replica, q)
				if err != nil {
					list = inspection.List{Incomplete: []string{fmt.Sprintf("replica %s: %v", hostOf(replica), err)}}
				}
				add(list.Items, list.Incomplete)
			})
		}
	}
	group.Wait()
	if !c.local && q.Kind == inspection.Dataplane {
		add(a.unconnected(q.ID, all.Items))
	}
	return merge(all, q)
}

// unconnected returns an item for each running dataplane of a Gateway that is not in answered.
func (a *API) unconnected(id string, answered []inspection.Item) (items []inspection.Item, incomplete []string) {
	reasons, err := a.Running(id)
	if err != nil {
		return nil, []string{"operator: " + err.Error()}
	}
	for _, item := range answered {
		delete(reasons, item.Pod)
	}
	for pod, reason := range reasons {
		items = append(items, inspection.Item{Pod: pod, Kind: inspection.Dataplane, Error: reason})
	}
	return items, nil
}

// local asks the pods that are connected to this replica.
func (a *API) local(ctx context.Context, q discovery.Query) (items []inspection.Item) {
	for _, answer := range a.Pods.Ask(ctx, q) {
		item := inspection.Item{
			Pod: answer.Pod, Kind: q.Kind, Status: answer.Status, Body: answer.Body, Error: answer.Error,
		}
		object := bytes.HasPrefix(item.Body, []byte("{")) && json.Valid(item.Body) // without a copy of its fields
		if item.Error == "" && !object {
			item.Status, item.Error = 0, "the answer of the pod is no JSON object"
		}
		items = append(items, item)
	}
	return items
}

func incompletePod(pod, reason string) string { return pod + ": " + reason }

// maxAnswer is the maximum size of the bodies in one answer in bytes.
const maxAnswer = 4 << 20

// merge returns the answers sorted by pod, with one answer for each pod. A pod that changes its replica has streams to
// both, so one of two requests may have failed, or may have found no sessions because the other one has ended them.
// Bodies beyond maxAnswer are replaced by an error.
func merge(all inspection.List, q discovery.Query) inspection.List {
	slices.SortStableFunc(all.Items, func(a, b inspection.Item) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(len(a.Error), len(b.Error)),
			cmp.Compare(a.Status, b.Status), cmp.Compare(len(b.Body), len(a.Body)))
	})
	all.Items = slices.CompactFunc(all.Items, func(a, b inspection.Item) bool { return a.Pod == b.Pod })
	incomplete := slices.DeleteFunc(all.Incomplete, func(text string) bool {
		return slices.ContainsFunc(all.Items, func(item inspection.Item) bool {
			return strings.HasPrefix(text, incompletePod(item.Pod, ""))
		})
	})
	size := 0
	for i := range all.Items {
		item := &all.Items[i]
		if size += len(item.Body); size > maxAnswer && item.Error == "" {
			item.Error = fmt.Sprintf("omitted: the answers exceed %d MiB: set limit or another filter", maxAnswer>>20)
		}
		if item.Error != "" {
			item.Body = nil
			incomplete = append(incomplete, incompletePod(item.Pod, item.Error))
		}
	}
	slices.Sort(incomplete)
	if all.Items == nil {
		all.Items = []inspection.Item{}
	}
	return inspection.List{
		Version: inspection.Version, Gateway: q.ID, Items: all.Items, Incomplete: slices.Compact(incomplete),
	}
}

// commonError returns the error that all pods answered with, such as an error about an invalid parameter, or an error
// about a Gateway without pods and without a config.
func (a *API) commonError(list inspection.List) error {
	if len(list.Incomplete) > 0 {
		return nil
	}
	if len(list.Items) == 0 {
		if _, _, ok := a.Pods.Published(list.Gateway); !ok {
			return errorf(http.StatusNotFound, "no config of Gateway %s is published", list.Gateway)
		}
		return nil
	}
	first := list.Items[0]
	for _, item := range list.Items {
		if item.Status != first.Status || item.Status < 400 || item.Status > 499 {
			return nil
		}
	}
	var body struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(first.Body, &body)
	return errorf(first.Status, "%s", cmp.Or(body.Message, http.StatusText(first.Status)))
}

func writeJSON(w http.ResponseWriter, body any) error {
	writeHeader(w, http.StatusOK)
	return encode(w, body)
}

func writeHeader(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
}

// encode writes the body of an answer. Its result is always nil, because it fails only if the client has disconnected.
func encode(w io.Writer, body any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // so that "<redacted>" stays readable
	_ = encoder.Encode(body)
	return nil
}
