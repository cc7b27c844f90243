package file

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// confirmAbsence is how long an object must be absent before it counts as removed. A short absence is normal, because
// editors and copy programs remove, truncate and rename files.
const confirmAbsence = 250 * time.Millisecond

// identity identifies an object by API version, kind and name, also after a restart.
type identity struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func identityOf(o resource.Object) identity {
	apiVersion, kind := o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return identity{APIVersion: apiVersion, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

func identities(objects []decode.Located) map[identity]bool {
	all := make(map[identity]bool, len(objects))
	for _, o := range objects {
		all[identityOf(o.Object)] = true
	}
	return all
}

func (id identity) String() string {
	name := id.Name
	if id.Namespace != "" {
		name = id.Namespace + "/" + id.Name
	}
	return fmt.Sprintf("%s %s", id.Kind, name)
}

// ledger records which objects of the folder are in use, by file. An object stays in use although it cannot be read
// now, because invalid YAML must not remove anything:
//
//   - While a document of a file is invalid, no object of that file is removed. Valid documents take effect.
//   - A file without content changes nothing, because a program may be writing it. To remove its objects, users delete
//     the file.
//   - An object that no file contains is removed after confirmAbsence.
//
// The ledger does no I/O and reads no clock.
type ledger struct {
	pages map[string]*page
}

// page holds the objects of one file.
type page struct {
	// last is the result of the last read.
	last decoded
	// objects are the objects of the file that are in use.
	objects []decode.Located
	// away are the objects in use that are absent from the file, with the time since when they are.
	away map[identity]time.Time
	// expected are the objects that were in use before a restart of the operator and that have not been read from this
	// file since. Until then they do not count as removed.
	expected []identity
}

// reading is the result of reading the input folder.
type reading struct {
	objects  []decode.Located // all objects in use
	problems []decode.Problem
	kept     []kept
	// missing are objects that were in use before a restart of the operator and that cannot be read now.
	missing []identity
	// next is when the folder must be read again even without a change; zero if it need not.
	next time.Time
}

// missesGateway reports whether r.missing contains a Gateway. key is NAMESPACE/NAME.
func (r reading) missesGateway(key string) bool {
	return slices.ContainsFunc(r.missing, func(id identity) bool {
		return id.Kind == "Gateway" && strings.HasPrefix(id.APIVersion, gatewayv1.GroupName+"/") &&
			id.Namespace+"/"+id.Name == key
	})
}

// kept is an object that stays in use although its file does not contain it now.
type kept struct {
	decode.Located
	why string
}

// newLedger returns a ledger that expects the objects in the inventory of the previous run.
func newLedger(inventory map[string][]identity) *ledger {
	l := &ledger{pages: map[string]*page{}}
	for name, ids := range inventory {
		l.pages[name] = &page{expected: ids}
	}
	return l
}

// inventory returns the objects in use by file, for the next run.
func (l *ledger) inventory() map[string][]identity {
	all := map[string][]identity{}
	for name, p := range l.pages {
		ids := slices.Clone(p.expected)
		for _, o := range p.objects {
			ids = append(ids, identityOf(o.Object))
		}
		if len(ids) > 0 {
			all[name] = ids
		}
	}
	return all
}

// update applies the contents of the folder, and returns the objects that are then in use.
func (l *ledger) update(c contents, now time.Time) reading {
	var s reading
	var fresh, stale []decode.Located
	for _, name := range l.names(c) {
		p := l.page(name)
		d := p.read(name, c)
		s.problems = append(s.problems, d.problems...)
		fresh = append(fresh, d.objects...)
		stale = append(stale, p.store(d, now, &s)...)
		if len(p.objects)+len(p.expected) == 0 {
			delete(l.pages, name)
		}
	}
	slices.SortStableFunc(fresh, byPlace)
	unique, duplicates := decode.Unique(fresh)
	s.problems = append(s.problems, duplicates...)
	s.objects = append(unique, l.stillKept(unique, stale, &s)...)
	s.missing = l.stillMissing(s.objects)
	return s
}

// decoded is the result of decoding one file.
type decoded struct {
	text     []byte
	objects  []decode.Located
	problems []decode.Problem
	broken   bool // a document is invalid
}

// read decodes one file. If the file has not changed, it returns the previous result.
func (p *page) read(name string, c contents) decoded {
	if err := c.unreadable[name]; err != nil {
		return decoded{broken: true, problems: []decode.Problem{{File: name, Line: 1, Severity: decode.Error,
			Message: fmt.Sprintf("cannot be read: %v", err)}}}
	}
	text, present := c.files[name]
	switch {
	case !present:
		return decoded{}
	case blank(text) && len(p.objects)+len(p.expected) > 0:
		return decoded{broken: true, problems: []decode.Problem{{File: name, Line: 1, Severity: decode.Info,
			Message: "is empty: what it held stays in force; delete the file to remove it"}}}
	case p.last.text != nil && bytes.Equal(text, p.last.text):
		return p.last
	}
	d := decoded{text: text}
	d.objects, d.problems = decode.File(name, text)
	d.broken = slices.ContainsFunc(d.problems, func(p decode.Problem) bool { return p.Severity == decode.Error })
	p.last = d
	return d
}

// store stores the result of a read. It returns the objects that stay in use although the file does not contain them
// now.
func (p *page) store(d decoded, now time.Time, s *reading) (stale []decode.Located) {
	written := identities(d.objects)
	away := map[identity]time.Time{}
	for _, o := range p.objects {
		id := identityOf(o.Object)
		if written[id] {
			continue
		}
		since, before := p.away[id]
		switch {
		case d.broken:
		case before && now.Sub(since) >= confirmAbsence:
			continue
		case !before:
			since = now
			fallthrough
		default:
			away[id] = since
			s.lookAgain(since.Add(confirmAbsence))
		}
		stale = append(stale, o)
	}
	p.expected = slices.DeleteFunc(p.expected, func(id identity) bool { return !d.broken || written[id] })
	p.objects, p.away = append(slices.Clone(d.objects), stale...), away
	return stale
}

func (s *reading) lookAgain(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// stillKept returns the stale objects that no other file contains. It records in s.kept which of them stay in use
// because of an invalid document.
func (l *ledger) stillKept(written, stale []decode.Located, s *reading) (objects []decode.Located) {
	have := identities(written)
	for _, o := range stale {
		id := identityOf(o.Object)
		if have[id] {
			continue
		}
		have[id] = true
		objects = append(objects, o)
		if _, leaving := l.pages[o.File].away[id]; !leaving {
			why := "its last good form is in force until everything in " + o.File + " can be read"
			s.kept = append(s.kept, kept{Located: o, why: why})
		}
	}
	return objects
}

// stillMissing returns the expected objects that are not in use.
func (l *ledger) stillMissing(objects []decode.Located) (missing []identity) {
	have := identities(objects)
	for _, name := range slices.Sorted(maps.Keys(l.pages)) {
		for _, id := range l.pages[name].expected {
			if !have[id] {
				missing = append(missing, id)
			}
		}
	}
	return missing
}

func (l *ledger) page(name string) *page {
	if l.pages[name] == nil {
		l.pages[name] = &page{}
	}
	return l.pages[name]
}

// names returns the names of the files that exist, and of those whose objects are still in use, sorted.
func (l *ledger) names(c contents) []string {
	names := slices.Collect(maps.Keys(l.pages))
	names = slices.AppendSeq(names, maps.Keys(c.files))
	names = slices.AppendSeq(names, maps.Keys(c.unreadable))
	slices.Sort(names)
	return slices.Compact(names)
}
