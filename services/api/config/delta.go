package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// A Delta is the difference between two configs of the same name, for a reader that has the first config. It is far
// shorter than a config with many routes or endpoints.
type Delta struct {
	// ID is the admin.name of both configs.
	ID string `json:"id"`
	// Base and Revision are the revisions of the first and of the second config.
	Base     string `json:"base"`
	Revision string `json:"revision"`
	// Digest is Parts.Digest of the second config.
	Digest Digest `json:"digest"`
	// Rest is the second config without clusters; empty if it has not changed.
	Rest json.RawMessage `json:"rest,omitempty"`
	// Clusters are the new clusters of the second config, and the clusters that differ in other fields than their
	// endpoints.
	Clusters []Cluster `json:"clusters,omitempty"`
	// Endpoints are the differences of the clusters that differ in their endpoints only.
	Endpoints []EndpointDelta `json:"endpoints,omitempty"`
	// Removed names the clusters that are only in the first config.
	Removed []string `json:"removed,omitempty"`
}

// EndpointDelta is the difference between the endpoints of a cluster in two configs.
type EndpointDelta struct {
	Cluster string   `json:"cluster"`
	Added   []string `json:"added,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// ErrMismatch is the error of Parts.Apply if a Delta does not belong to the config, or does not yield its second
// config. The reader must then request the whole config.
var ErrMismatch = errors.New("the delta does not match the config")

// Since returns the difference from base to p. from is the revision of base, and revision is the revision of p.
func (p *Parts) Since(base *Parts, from, revision string) Delta {
	d := Delta{ID: p.whole.Admin.Name, Base: from, Revision: revision, Digest: p.digest}
	if p.restDigest != base.restDigest {
		d.Rest = p.restText
	}
	pairsOf(base.whole.Clusters, p.whole.Clusters, func(i, j int) {
		switch {
		case j < 0:
			d.Removed = append(d.Removed, base.whole.Clusters[i].Name)
		case i < 0:
			d.Clusters = append(d.Clusters, p.whole.Clusters[j])
		case base.digestAt(i) == p.digestAt(j):
		case sameHead(base.whole.Clusters[i], p.whole.Clusters[j]):
			was, is := base.whole.Clusters[i], p.whole.Clusters[j]
			removed, added := compareSets(was.Endpoints, is.Endpoints)
			d.Endpoints = append(d.Endpoints, EndpointDelta{is.Name, added, removed})
		default:
			d.Clusters = append(d.Clusters, p.whole.Clusters[j])
		}
	})
	return d
}

// Apply returns the second config of a Delta whose first config is p, and the fields of Delta.Rest that this release
// does not define. It validates the changed fields only. It does not compare Delta.Base. The error is ErrMismatch, or
// joined *FieldError values. p does not change.
func (p *Parts) Apply(d Delta) (next *Parts, unknown []string, err error) {
	if d.ID != p.whole.Admin.Name {
		return nil, nil, fmt.Errorf("%w: id %.200q is not %.200q", ErrMismatch, d.ID, p.whole.Admin.Name)
	}
	next = &Parts{whole: p.whole, restText: p.restText, restDigest: p.restDigest, digest: p.digest}
	var f findings
	if len(d.Rest) > 0 {
		if unknown, err = next.replaceRest(d); err != nil {
			return nil, nil, err
		}
		f.errs = append(f.errs, next.whole.Validate())
	}
	if err := next.replaceClusters(p, d, &f); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(f.errs...); err != nil {
		return nil, nil, err
	}
	if next.digest != d.Digest {
		return nil, unknown, fmt.Errorf("%w: it yields the digest %s and not %s", ErrMismatch, next.digest, d.Digest)
	}
	return next, unknown, nil
}

// replaceRest sets everything except the clusters from Delta.Rest.
func (p *Parts) replaceRest(d Delta) (unknown []string, err error) {
	rest, unknown, err := Parse(d.Rest)
	switch {
	case err != nil:
		return nil, err
	case len(rest.Clusters) > 0 || rest.Admin.Name != d.ID:
		return nil, fmt.Errorf("%w: rest has clusters, or is the config of %.200q", ErrMismatch, rest.Admin.Name)
	}
	p.whole = rest
	p.digest.add(p.restDigest)
	p.encodeRest()
	p.digest.add(p.restDigest)
	return unknown, nil
}

// replaceClusters sets the clusters of a Delta, starting from the clusters of its first config. It adds the invalid
// fields of changed clusters to f.
func (p *Parts) replaceClusters(base *Parts, d Delta, f *findings) error {
	if p.size = base.size; p.size == 0 {
		p.size = sizeOf(base.whole.Clusters...)
	}
	if len(d.Clusters)+len(d.Endpoints)+len(d.Removed) == 0 {
		p.whole.Clusters = base.whole.Clusters
		f.document(p)
		return nil
	}
	list := slices.Clone(base.whole.Clusters)
	for _, name := range d.Removed {
		i, found := find(list, name)
		if !found {
			return fmt.Errorf("%w: cluster %.200q is not there to be removed", ErrMismatch, name)
		}
		p.exchange(&list[i], nil)
		list = slices.Delete(list, i, i+1)
	}
	for _, change := range d.Endpoints {
		i, found := find(list, change.Cluster)
		if !found {
			return fmt.Errorf("%w: cluster %.200q is not there", ErrMismatch, change.Cluster)
		}
		removed, added := set(change.Removed), set(change.Added)
		if list[i].Endpoints, found = patchSet(list[i].Endpoints, removed, added); !found {
			return fmt.Errorf("%w: endpoints of cluster %.200q are missing, or are there already", ErrMismatch,
				change.Cluster)
		}
		p.digest = p.digest.toggle(kindEndpoint, list[i].Name, removed).toggle(kindEndpoint, list[i].Name, added)
		p.size += textSize(added) - textSize(removed)
		f.atMost(index("clusters", i, "endpoints"), len(list[i].Endpoints), maxEndpoints)
		only := list[i]
		only.Endpoints, only.Except = added, nil
		f.cluster(i, only)
	}
	for _, c := range d.Clusters {
		c.normalize()
		i, found := find(list, c.Name)
		if found {
			p.exchange(&list[i], &c)
			list[i] = c
		} else {
			p.exchange(nil, &c)
			list = slices.Insert(list, i, c)
		}
		f.cluster(i, c)
	}
	if p.whole.Clusters = list; len(list) == 0 {
		p.whole.Clusters = nil
	}
	f.document(p)
	return nil
}

// exchange updates the hash and the size of the whole config after one cluster was replaced by another. old is nil for
// a new cluster, next for a removed one.
func (p *Parts) exchange(old, next *Cluster) {
	if old != nil {
		p.digest.add(digestOf(*old))
		p.size -= sizeOf(*old)
	}
	if next != nil {
		p.digest.add(digestOf(*next))
		p.size += sizeOf(*next)
	}
}

// find returns the index of a cluster in a list that is sorted by name, or the index at which it is missing.
func find(list []Cluster, name string) (i int, found bool) {
	return slices.BinarySearchFunc(list, name, func(c Cluster, name string) int { return cmp.Compare(c.Name, name) })
}

// document checks the limits of a config as a whole.
func (f *findings) document(p *Parts) {
	f.atMost("clusters", len(p.whole.Clusters), maxClusters)
	f.hostNames(p.whole.Clusters)
	if p.size+len(p.restText) > MaxDocument {
		f.add("config", "", fmt.Sprintf("has more than %d bytes", MaxDocument), "use fewer routes or endpoints")
	}
}

// ParseDelta parses a Delta.
func ParseDelta(text []byte) (d Delta, err error) {
	if len(text) > MaxDocument {
		return d, fmt.Errorf("parse delta: %d bytes are too many: the limit is %d", len(text), MaxDocument)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return Delta{}, fmt.Errorf("parse delta: %w", typeError(err))
	}
	return d, nil
}

// Encode returns the JSON form of a Delta.
func (d Delta) Encode() []byte { return encode(d) }

// encode returns the JSON form of a value, without escapes for HTML.
func encode(value any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		panic(fmt.Sprintf("encode config: %v", err)) // strings, numbers and lists always encode
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// EndpointChange is a change of the endpoints of a cluster.
type EndpointChange struct {
	Cluster string
	// Index is the index of the cluster in both configs.
	Index int
	// Old and New are the endpoints. Added and Removed are the differences.
	Old, New       []string
	Added, Removed []string
}

// EndpointChanges returns the differences of two valid configs, if they differ in the endpoints of static clusters
// only; otherwise ok is false. Lists that both configs share are compared only by their address in memory.
func EndpointChanges(old, next Config) (changes []EndpointChange, ok bool) {
	was, is := old.Clusters, next.Clusters
	old.Clusters, next.Clusters = nil, nil
	if len(was) != len(is) || !reflect.DeepEqual(old, next) {
		return nil, false
	}
	for i := range is {
		if identical(was[i], is[i]) {
			continue
		}
		if !sameHead(was[i], is[i]) {
			return nil, false
		}
		c := EndpointChange{Cluster: is[i].Name, Index: i, Old: was[i].Endpoints, New: is[i].Endpoints}
		c.Removed, c.Added = compareSets(c.Old, c.New)
		if len(c.Removed)+len(c.Added) == 0 {
			continue
		}
		if is[i].Type != Static || slices.ContainsFunc(c.Added, holdsPlaceholder) {
			return nil, false
		}
		changes = append(changes, c)
	}
	return changes, true
}

// Follows reports whether the change is a change of a cluster.
func (c EndpointChange) Follows(was Cluster) bool {
	return was.Name == c.Cluster && was.Type == Static &&
		(sameArray(was.Endpoints, c.Old) || slices.Equal(was.Endpoints, c.Old))
}

// Change describes the change for logs, as Diff does.
func (c EndpointChange) Change() Change {
	return Change{"clusters[" + c.Cluster + "].endpoints", shorten(c.Removed), shorten(c.Added)}
}
