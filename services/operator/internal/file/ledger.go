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

// confirmAbsence is how long an object must be absent before it counts as removed. Files are not written atomically:
// editors and copies remove, truncate and rename them.
const confirmAbsence = 250 * time.Millisecond

// identity identifies an object across reads and restarts.
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

func (id identity) String() string {
	name := id.Name
	if id.Namespace != "" {
		name = id.Namespace + "/" + id.Name
	}
	return fmt.Sprintf("%s %s", id.Kind, name)
}

// ledger has the objects in force, by file. It implements the rule that invalid YAML removes nothing:
//
//   - While a document of a file is invalid, no object of that file is removed. Valid documents take effect.
//   - A file without content is treated as being written: it changes nothing. Delete the file to remove its objects.
//   - An object that is in no file is removed after confirmAbsence.
//
// The ledger does no I/O and reads no clock.
type ledger struct {
	pages map[string]*page
}

// page has the objects of one file.
type page struct {
	last    decoded // of the last read
	objects []decode.Located
	away    map[identity]time.Time // since when an object in force is absent from the file
	// promised are the objects that an earlier run read from this file and that this run has not read yet.
	promised []identity
}

// reading is the result of reading the folder.
type reading struct {
	objects  []decode.Located // in force
	problems []decode.Problem
	kept     []kept
	// missing are objects that were in force in an earlier run and cannot be read now.
	missing []identity
	// next is when to read again without a change; zero for never.
	next time.Time
}

// missesGateway tells whether a Gateway, NAMESPACE/NAME, is missing.
func (r reading) missesGateway(key string) bool {
	return slices.ContainsFunc(r.missing, func(id identity) bool {
		return id.Kind == "Gateway" && strings.HasPrefix(id.APIVersion, gatewayv1.GroupName+"/") &&
			id.Namespace+"/"+id.Name == key
	})
}

// kept is an object that stays in force although its file does not have it now.
type kept struct {
	decode.Located
	why string
}

// newLedger starts with the inventory of an earlier run.
func newLedger(inventory map[string][]identity) *ledger {
	l := &ledger{pages: map[string]*page{}}
	for name, ids := range inventory {
		l.pages[name] = &page{promised: ids}
	}
	return l
}

// inventory returns the objects of each file, for the next run.
func (l *ledger) inventory() map[string][]identity {
	all := map[string][]identity{}
	for name, p := range l.pages {
		ids := slices.Clone(p.promised)
		for _, o := range p.objects {
			ids = append(ids, identityOf(o.Object))
		}
		if len(ids) > 0 {
			all[name] = ids
		}
	}
	return all
}

// update applies the contents of the folder.
func (l *ledger) update(c contents, now time.Time) reading {
	var s reading
	var fresh, stale []decode.Located
	for _, name := range l.names(c) {
		p := l.page(name)
		d := p.read(name, c)
		s.problems = append(s.problems, d.problems...)
		fresh = append(fresh, d.objects...)
		stale = append(stale, p.turn(d, now, &s)...)
		if len(p.objects)+len(p.promised) == 0 {
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

// decoded is the result of decoding a file.
type decoded struct {
	text     []byte
	objects  []decode.Located
	problems []decode.Problem
	broken   bool // a document is invalid
}

// read decodes one file, unless it has not changed.
func (p *page) read(name string, c contents) decoded {
	if err := c.unreadable[name]; err != nil {
		return decoded{broken: true, problems: []decode.Problem{{File: name, Line: 1, Severity: decode.Error,
			Message: fmt.Sprintf("cannot be read: %v", err)}}}
	}
	text, present := c.files[name]
	switch {
	case !present:
		return decoded{}
	case blank(text) && len(p.objects)+len(p.promised) > 0:
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

// turn stores what was read, and returns the objects that stay in force although the file does not have them now.
func (p *page) turn(d decoded, now time.Time, s *reading) (stale []decode.Located) {
	written := map[identity]bool{}
	for _, o := range d.objects {
		written[identityOf(o.Object)] = true
	}
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
	p.promised = slices.DeleteFunc(p.promised, func(id identity) bool { return !d.broken || written[id] })
	p.objects, p.away = append(slices.Clone(d.objects), stale...), away
	return stale
}

func (s *reading) lookAgain(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// stillKept returns the stale objects that no other file has, and reports those that an invalid document keeps in
// force.
func (l *ledger) stillKept(written, stale []decode.Located, s *reading) (objects []decode.Located) {
	have := map[identity]bool{}
	for _, o := range written {
		have[identityOf(o.Object)] = true
	}
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

// stillMissing returns the objects of earlier runs that are not in force.
func (l *ledger) stillMissing(objects []decode.Located) (missing []identity) {
	have := map[identity]bool{}
	for _, o := range objects {
		have[identityOf(o.Object)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(l.pages)) {
		for _, id := range l.pages[name].promised {
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

// names returns the names of the files that exist and of those that have objects in force, sorted.
func (l *ledger) names(c contents) []string {
	all := slices.AppendSeq(c.names(), maps.Keys(l.pages))
	slices.Sort(all)
	return slices.Compact(all)
}
