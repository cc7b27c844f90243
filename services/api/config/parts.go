package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
)

// Parts is a config with defaults as a list of parts: each cluster is a part, and everything else is one part. Each
// part has a hash, and the hash of the whole config follows from the hashes of the parts. Parts is immutable. It shares
// unchanged parts with the Parts from which it was made. So the cost of a change depends only on the changed parts.
type Parts struct {
	// given is the config without clusters from which the Parts were made, before defaults were set.
	given Config
	// whole is in canonical form, see Config.Canonical.
	whole Config
	// restText is the canonical form of whole without clusters.
	restText   []byte
	restDigest Digest
	// digests are the hashes of the clusters; nil in a result of Apply.
	digests []Digest
	digest  Digest
	// size is the sum of sizeOf all clusters, or 0 if it has not been computed.
	size int
}

// PartsOf divides a config into parts. before contains the Parts of a similar config, or is nil: equal parts are taken
// from it. The caller must not modify the lists of endpoints, exceptions and routes of c afterwards.
func PartsOf(c Config, before *Parts) *Parts {
	if before == nil {
		before = &Parts{}
	}
	clusters := c.Clusters
	c.Clusters = nil
	p := &Parts{}
	if before.restText != nil && reflect.DeepEqual(c, before.given) {
		p.given, p.whole = before.given, before.whole
		p.restText, p.restDigest = before.restText, before.restDigest
	} else {
		p.given = c.Clone()
		for i, l := range c.Listeners { // shared, so that comparing thousands of routes is cheap
			p.given.Listeners[i].Routes = l.Routes
		}
		p.whole = p.given
		p.whole.Default()
		p.encodeRest()
	}
	p.takeClusters(clusters, before)
	p.sum()
	return p
}

// encodeRest sets the text and the hash of everything except the clusters.
func (p *Parts) encodeRest() {
	rest := p.whole
	rest.Clusters = nil
	p.restText = rest.Canonical()
	p.restDigest = Digest(sha256.Sum256(p.restText))
}

// takeClusters sets the clusters from a list in any order.
func (p *Parts) takeClusters(clusters []Cluster, before *Parts) {
	was := before.whole.Clusters
	sorted := slices.Clone(clusters)
	for i := range sorted {
		if i < len(was) && identical(sorted[i], was[i]) {
			continue
		}
		sorted[i].normalize()
	}
	if !slices.IsSortedFunc(sorted, byClusterName) {
		slices.SortStableFunc(sorted, byClusterName)
	}
	p.digests = make([]Digest, len(sorted))
	pairsOf(was, sorted, func(i, j int) {
		switch {
		case j < 0:
		case i < 0:
			p.digests[j] = digestOf(sorted[j])
		case identical(was[i], sorted[j]):
			p.digests[j] = before.digestAt(i)
		case sameHead(was[i], sorted[j]):
			removed, added := compareSets(was[i].Endpoints, sorted[j].Endpoints)
			p.digests[j] = before.digestAt(i).toggle(kindEndpoint, was[i].Name, removed).
				toggle(kindEndpoint, was[i].Name, added)
			if len(removed)+len(added) == 0 {
				sorted[j] = was[i]
			}
		default:
			p.digests[j] = digestOf(sorted[j])
		}
	})
	p.whole.Clusters = sorted
	if len(sorted) == 0 {
		p.whole.Clusters = nil
	}
}

// sum sets the hash of the whole config from the hashes of the parts.
func (p *Parts) sum() {
	p.digest = p.restDigest
	for i := range p.digests {
		p.digest.add(p.digests[i])
	}
}

// digestAt returns the hash of a cluster.
func (p *Parts) digestAt(i int) Digest {
	if p.digests == nil {
		return digestOf(p.whole.Clusters[i])
	}
	return p.digests[i]
}

// Config returns the config. The caller must not modify its lists.
func (p *Parts) Config() Config { return p.whole }

// Digest returns the hash of the whole config. It depends on the content only.
func (p *Parts) Digest() Digest { return p.digest }

// SameRest reports whether two configs differ in their clusters only.
func (p *Parts) SameRest(other *Parts) bool { return p.restDigest == other.restDigest }

// Digest is a hash of a set: the bitwise sum modulo 2 of the SHA-256 of its members. It can be computed from the hash
// of a similar set and the differences. It detects errors. It need not resist attacks, because the sender of a config
// determines the config anyway.
type Digest [sha256.Size]byte

func (d *Digest) add(other Digest) {
	for i := 0; i < len(d); i += 8 {
		word := binary.LittleEndian.Uint64(d[i:]) ^ binary.LittleEndian.Uint64(other[i:])
		binary.LittleEndian.PutUint64(d[i:], word)
	}
}

// String returns the hash in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText returns the hash in hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses the result of MarshalText.
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return errors.New("digest has another length than 64")
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// A cluster is hashed as a set of members. These are the kinds of the members.
const (
	kindHead byte = iota
	kindEndpoint
	kindExcept
)

// toggle adds the members to the set that it does not contain, and removes the others.
func (d Digest) toggle(kind byte, cluster string, members []string) Digest {
	var room [256]byte
	for _, member := range members {
		text := append(room[:0], kind)
		text = append(append(append(text, cluster...), 0), member...)
		d.add(sha256.Sum256(text))
	}
	return d
}

func digestOf(c Cluster) Digest {
	head := []string{string(c.Type) + "\x00" + c.Protocol}
	return Digest{}.toggle(kindHead, c.Name, head).toggle(kindEndpoint, c.Name, c.Endpoints).
		toggle(kindExcept, c.Name, c.Except)
}

// normalize sets defaults, and makes the lists of a cluster sets.
func (c *Cluster) normalize() {
	c.fill()
	c.Endpoints, c.Except = set(c.Endpoints), set(c.Except)
}

func byClusterName(a, b Cluster) int { return cmp.Compare(a.Name, b.Name) }

// identical reports whether two clusters share their lists. It does not compare the content of the lists.
func identical(a, b Cluster) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Protocol == b.Protocol &&
		sameArray(a.Endpoints, b.Endpoints) && sameArray(a.Except, b.Except)
}

func sameArray(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// sameHead reports whether two clusters have equal fields, except for their endpoints.
func sameHead(a, b Cluster) bool {
	return a.Name == b.Name && a.Type == b.Type && a.Protocol == b.Protocol && slices.Equal(a.Except, b.Except)
}

// sizeOf returns a lower bound of the length of the JSON form of clusters.
func sizeOf(clusters ...Cluster) (bytes int) {
	for _, c := range clusters {
		bytes += len(c.Name) + len(`{"name":"","type":"","protocol":""}`)
		bytes += textSize(c.Endpoints) + textSize(c.Except)
	}
	return bytes
}

func textSize(texts []string) (bytes int) {
	for _, text := range texts {
		bytes += len(text) + len(`"",`)
	}
	return bytes
}

// pairsOf calls visit with the indexes of the clusters of two lists that have the same name, in the order of names. The
// index of a cluster that is missing in a list is -1. Both lists are sorted by name.
func pairsOf(was, is []Cluster, visit func(i, j int)) {
	i, j := 0, 0
	for i < len(was) || j < len(is) {
		order := 0
		switch {
		case j == len(is):
			order = -1
		case i == len(was):
			order = 1
		default:
			order = cmp.Compare(was[i].Name, is[j].Name)
		}
		switch {
		case order < 0:
			visit(i, -1)
			i++
		case order > 0:
			visit(-1, j)
			j++
		default:
			visit(i, j)
			i, j = i+1, j+1
		}
	}
}

// compareSets returns the members that are only in the first and only in the second of two sorted sets. It is fast for
// sets that share their strings.
func compareSets(was, is []string) (removed, added []string) {
	if sameArray(was, is) {
		return nil, nil
	}
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0] < is[0]:
			removed, was = append(removed, was[0]), was[1:]
		case len(was) == 0 || is[0] < was[0]:
			added, is = append(added, is[0]), is[1:]
		default:
			was, is = was[1:], is[1:]
		}
	}
	return removed, added
}

// PatchSet returns a copy of a sorted set without some members and with others, each in any order. It shares the
// strings of the members that stay. It returns false if a removed member is missing, or if an added one is there
// already.
func PatchSet(members, removed, added []string) (next []string, ok bool) {
	gone, come := compareSets(set(removed), set(added)) // keep a member that is both removed and added
	return patchSet(members, gone, come)
}

// patchSet returns a copy of a sorted set with members removed and added, which are sorted sets too. It returns false
// if a removed member is missing, or if an added one is there already.
func patchSet(members, removed, added []string) (next []string, ok bool) {
	next = make([]string, 0, max(0, len(members)+len(added)-len(removed)))
	for len(removed) > 0 || len(added) > 0 {
		if len(added) == 0 || len(removed) > 0 && removed[0] <= added[0] {
			i, found := slices.BinarySearch(members, removed[0])
			if !found || len(added) > 0 && removed[0] == added[0] {
				return nil, false
			}
			next, members, removed = append(next, members[:i]...), members[i+1:], removed[1:]
			continue
		}
		i, found := slices.BinarySearch(members, added[0])
		if found {
			return nil, false
		}
		next = append(append(next, members[:i]...), added[0])
		members, added = members[i:], added[1:]
	}
	if next = append(next, members...); len(next) == 0 {
		next = nil
	}
	return next, true
}

// Frame is the canonical form of Parts, with the positions of the clusters in it.
type Frame struct {
	// Text is Config.Canonical.
	Text []byte
	// first is where the first cluster begins, and ends are where the clusters end.
	first int
	ends  []int
}

// Encode returns the canonical form. of is nil, or Parts that share parts with p. before is the Frame of these Parts,
// which contains the text of the shared parts.
func (p *Parts) Encode(of *Parts, before Frame) Frame {
	clusters := p.whole.Clusters
	if len(clusters) == 0 {
		return Frame{Text: p.restText}
	}
	if of == nil || len(before.ends) == 0 {
		of = &Parts{}
	}
	head, tail := p.outline(of, before)
	f := Frame{
		Text: make([]byte, 0, len(before.Text)+len(before.Text)/16+len(head)), first: len(head),
		ends: make([]int, len(clusters)),
	}
	f.Text = append(f.Text, head...)
	pairsOf(of.whole.Clusters, clusters, func(i, j int) {
		if j < 0 {
			return
		}
		if j > 0 {
			f.Text = append(f.Text, ',')
		}
		if i >= 0 && identical(of.whole.Clusters[i], clusters[j]) {
			f.Text = append(f.Text, before.cluster(i)...)
		} else {
			f.Text = appendCluster(f.Text, clusters[j])
		}
		f.ends[j] = len(f.Text)
	})
	f.Text = append(f.Text, tail...)
	return f
}

// outline returns the canonical form before and after the clusters.
func (p *Parts) outline(of *Parts, before Frame) (head, tail []byte) {
	if p.restDigest == of.restDigest {
		return before.Text[:before.first], before.Text[before.ends[len(before.ends)-1]:]
	}
	outline := p.whole
	outline.Clusters = []Cluster{{Type: "-"}} // a text that occurs nowhere else in the config
	head, tail, _ = bytes.Cut(encode(outline), encode(outline.Clusters[0]))
	return head, tail
}

func (f Frame) cluster(i int) []byte {
	begin := f.first
	if i > 0 {
		begin = f.ends[i-1] + len(",")
	}
	return f.Text[begin:f.ends[i]]
}

// appendCluster appends the JSON form of a cluster. It is much faster than package json for many endpoints.
func appendCluster(text []byte, c Cluster) []byte {
	endpoints := c.Endpoints
	c.Endpoints = nil
	if len(endpoints) == 0 {
		return append(text, encode(c)...)
	}
	c.Endpoints = []string{""}
	head, tail, _ := bytes.Cut(encode(c), []byte(`"endpoints":[""`))
	text = append(append(text, head...), `"endpoints":[`...)
	for i, e := range endpoints {
		if i > 0 {
			text = append(text, ',')
		}
		text = appendText(text, e)
	}
	return append(text, tail...)
}

// appendText appends the JSON form of a text.
func appendText(to []byte, text string) []byte {
	for i := range len(text) {
		if b := text[i]; b < ' ' || b > '~' || b == '"' || b == '\\' {
			return append(to, encode(text)...)
		}
	}
	return append(append(append(to, '"'), text...), '"')
}
