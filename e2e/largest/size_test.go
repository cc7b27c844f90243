package largest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
)

// most is the size in bytes of the JSON of the largest objects. etcd refuses requests of 1.5 MiB, and the API server
// stores the managed fields too.
const most = 1_400_000

// worthwhile is the size in bytes from which an object is tried. Smaller objects are usual.
const worthwhile = 4_000

// slowestTry is the duration of a request after which no larger size is tried. The API server validates some lists in
// quadratic time, so a flood of larger objects would slow down the API server rather than the operator.
const slowestTry = 500 * time.Millisecond

// apiServer sends requests without decoding the objects in responses.
type apiServer struct {
	*cluster.Cluster
	client   *http.Client
	requests int
	known    map[string]known // largest sizes by field
}

func newAPIServer(kube *cluster.Cluster) (*apiServer, error) {
	config := rest.CopyConfig(kube.Admin.Config)
	config.UserAgent = "largest"
	client, err := rest.HTTPClientFor(config)
	return &apiServer{Cluster: kube, client: client, known: map[string]known{}}, err
}

// refusal is the response of the API server to a request that it does not accept.
type refusal struct {
	code    int
	message string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %.300s", r.code, r.message) }

// tooLarge reports whether the object exceeds the limit of etcd or of a request.
func (r *refusal) tooLarge() bool {
	return r.code == http.StatusRequestEntityTooLarge || strings.Contains(r.message, "too large") ||
		strings.Contains(r.message, "larger than max")
}

// send sends a request. A response other than 2xx is a *refusal. A patch is a JSON merge patch.
func (a *apiServer) send(ctx context.Context, method, path string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, a.Admin.Config.Host+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusMultipleChoices {
		_, err := io.Copy(io.Discard, response.Body)
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var status struct{ Message string }
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = string(text)
	}
	return &refusal{response.StatusCode, status.Message}
}

// isLate reports whether the API server has not answered a request within its timeout.
func isLate(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		return r.code == http.StatusGatewayTimeout
	}
	return err != nil && strings.Contains(err.Error(), "stream error")
}

// create creates an object in the namespace of the attacker.
func (a *apiServer) create(ctx context.Context, o map[string]any) error {
	return a.send(ctx, http.MethodPost, pathOf(kindOf(o), attacker), bytesOf(o))
}

// body is the JSON of a request that creates an object, or that writes its status.
type body struct {
	method, path string
	json         []byte
}

// bodiesOf returns the requests that write an object: one request for the object, and one for its status.
func bodiesOf(o map[string]any) (bodies []body) {
	path := pathOf(kindOf(o), attacker)
	status, has := o["status"]
	if has {
		o = maps.Clone(o)
		delete(o, "status")
	}
	bodies = append(bodies, body{http.MethodPost, path, bytesOf(o)})
	if has {
		own := o["metadata"].(map[string]any)["name"].(string)
		bodies = append(bodies, body{http.MethodPatch, path + "/" + own + "/status", bytesOf(map[string]any{"status": status})})
	}
	return bodies
}

// copyOf returns the request for a copy of an object, which has another name.
func (b body) copyOf(i int) body {
	other := fmt.Sprintf("object-%05d", i)
	return body{b.method, strings.ReplaceAll(b.path, name, other), bytes.ReplaceAll(b.json, []byte(name), []byte(other))}
}

// admits returns whether the API server would create an object, or accept its status, for which the object must exist.
func (a *apiServer) admits(ctx context.Context, o map[string]any) (*refusal, error) {
	bodies := bodiesOf(o)
	b := bodies[len(bodies)-1]
	a.requests++
	err := a.send(ctx, b.method, b.path+"?dryRun=All&timeout=5s", b.json) // validation of some lists takes minutes
	if r, is := err.(*refusal); is {
		return r, nil
	}
	if isLate(err) {
		return &refusal{http.StatusGatewayTimeout, err.Error()}, nil
	}
	return nil, err
}

// candidate is an object of a row in which fields are as large as the API server admits.
type candidate struct {
	row    row
	fields []field
	// size is the number of elements, or the length in bytes, of the fields.
	size []int
	// growth has the growth of each field.
	growth []growth
	node   *node
	base   map[string]any
	// using are the large objects to which the object refers, by their names.
	using map[string]*candidate

	bytes   int    // of its JSON; 0 if unknown
	refused string // why the API server accepts no object larger than the base object
}

func (c *candidate) String() string {
	var fields []string
	for i, f := range c.fields {
		fields = append(fields, fmt.Sprintf("%s %s × %d", f.form, f.path, c.size[i]))
	}
	if len(fields) == 0 {
		fields = []string{"the object itself"}
	}
	text := c.row.name + ": " + strings.Join(fields, ", ")
	for name, u := range c.using {
		text += fmt.Sprintf(", %s with %s", name, u)
	}
	return text
}

// length returns the length of the object as JSON.
func (c *candidate) length() int {
	if c.bytes == 0 {
		c.bytes = len(bytesOf(c.object()))
	}
	return c.bytes
}

// object returns the object of a candidate; nil if a growth does not apply.
func (c *candidate) object() map[string]any {
	o := c.base
	for i, f := range c.fields {
		if o = c.node.grown(o, f, c.growth[i], c.size[i]); o == nil {
			return nil
		}
	}
	return o
}

// known is the largest size of a field that another row has too.
type known struct {
	growth growth
	size   int
}

// grow finds the largest size of a field that the API server admits.
func (a *apiServer) grow(ctx context.Context, r row, n *node, base map[string]any, f field) (*candidate, error) {
	c := &candidate{row: r, node: n, base: base, fields: []field{f}}
	empty := len(bytesOf(base))
	var failed error
	length := map[int]int{} // lengths in bytes, by size
	slow := false           // the last request took longer than slowestTry
	try := func(y growth, size int) bool {
		c.size, c.growth = []int{size}, []growth{y}
		o := c.object()
		if o == nil || failed != nil {
			return false
		}
		var refused *refusal
		length[size] = len(bytesOf(o))
		begun := time.Now()
		refused, failed = a.admits(ctx, o)
		slow = time.Since(begun) > slowestTry
		if refused != nil && c.refused == "" {
			c.refused = refused.message
		}
		return failed == nil && refused == nil
	}
	done := func(y growth, size int) (*candidate, error) {
		c.size, c.growth, c.refused = []int{size}, []growth{y}, ""
		c.bytes = length[size]
		a.known[f.String()] = known{y, size}
		return c, failed
	}
	if k, is := a.known[f.String()]; is {
		// The field has the same rules in all kinds, but the values of base objects differ.
		if f.path[0] == "metadata" && k.growth.name != growths[text][0].name {
			c.size, c.growth = []int{k.size}, []growth{k.growth}
			length[k.size] = len(bytesOf(c.object()))
			return done(k.growth, k.size)
		}
		if try(k.growth, k.size) {
			return done(k.growth, k.size)
		}
	}
	for _, y := range growths[f.form] {
		low := 3
		if f.form == text {
			old, _ := at(base, f.path).(string)
			low = len(old) + 16
		}
		if f.most > 0 {
			low = min(low, f.most)
		}
		if !try(y, low) {
			continue
		}
		each := max(1, (len(bytesOf(c.sized(low+1000)))-length[low])/1000)
		high := max(low, (most-empty)/each)
		if f.most > 0 {
			high = min(high, f.most)
		}
		for size := min(8*low, high); size > low && !slow && try(y, size); size = min(8*low, high) {
			low = size
		}
		if low < high { // the smallest size that was not accepted
			high = min(8*low, high)
		}
		for !slow && high-low > 1+low/16 {
			if middle := (low + high) / 2; try(y, middle) {
				low = middle
			} else {
				high = middle
			}
		}
		return done(y, low)
	}
	c.size, c.growth = nil, nil
	return c, failed
}

// sized returns the object with another size of its last field.
func (c *candidate) sized(size int) map[string]any {
	other := *c
	other.size = append(slices.Clone(c.size[:len(c.size)-1]), size)
	return other.object()
}

// together grows a field in all elements of a list of the largest size, as far as the API server accepts.
func (a *apiServer) together(ctx context.Context, of, in *candidate) (*candidate, error) {
	depth := len(of.fields[0].path)
	inner := in.fields[0]
	inner.path = slices.Clone(inner.path)
	inner.path[depth] = elements
	c := &candidate{
		row: of.row, node: of.node, base: of.base,
		fields: []field{of.fields[0], inner}, growth: []growth{of.growth[0], in.growth[0]},
	}
	each := float64(in.length()-len(bytesOf(in.base))) / float64(in.size[0]) // bytes of an entry, or 1
	for outer := of.size[0]; outer > 1; outer /= 2 {
		for size := in.size[0]; size > 1; size /= 2 {
			if each*float64(size)*float64(outer) > 2*most { // otherwise the object could have gigabytes
				continue
			}
			c.size = []int{outer, size}
			o := c.object()
			if o == nil {
				return nil, nil
			}
			if c.bytes = len(bytesOf(o)); c.bytes > most {
				continue
			}
			r, err := a.admits(ctx, o)
			if err != nil {
				return nil, err
			}
			if r == nil {
				return c, nil
			}
			if size == in.size[0] {
				c.refused = r.message
			}
			break // a shorter list is better
		}
	}
	return nil, nil
}
