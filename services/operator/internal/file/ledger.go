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

// confirmAbsence is how long an object has to be away before it counts as removed. Files are not written in one piece: editors
// and copies remove, truncate and rename, and what is away for a moment was not taken away.
const confirmAbsence = 250 * time.Millisecond

// identity names an object across reads and runs.
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

// ledger remembers what is in force, file by file. It is the place of the rule that broken YAML loses nothing:
//
//   - While anything in a file cannot be read, no object of that file is removed. What can be read takes effect.
//   - A file without any content counts as being written: it changes nothing. Delete the file to remove its objects.
//   - An object that is no longer written anywhere is removed once it has been away for confirmAbsence.
//
// The ledger does no I/O and reads no clock.
type ledger struct {
	pages map[string]*page
}

// page is what one file stands for.
type page struct {
	last    decoded // what was read last
	objects []decode.Located
	away    map[identity]time.Time // since when an object in force is no longer written
	// promised are objects that an earlier run had from this file and that this run has not been able to read yet.
	promised []identity
}

// reading is the outcome of a look at the folder.
type reading struct {
	objects  []decode.Located // in force
	problems []decode.Problem
	kept     []kept
	// missing are objects that were in force in an earlier run and that cannot be read now.
	missing []identity
	// next is when to look again although nothing has changed; zero for never.
	next time.Time
}

// missesGateway tells whether a Gateway, NAMESPACE/NAME, is one of the objects that cannot be read now.
func (r reading) missesGateway(key string) bool {
	return slices.ContainsFunc(r.missing, func(id identity) bool {
		return id.Kind == "Gateway" && strings.HasPrefix(id.APIVersion, gatewayv1.GroupName+"/") && id.Namespace+"/"+id.Name == key
	})
}

// kept is an object that is in force although it is not written as such now.
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

// inventory names what each file stands for, for the next run.
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

// update takes in the contents of the folder at a moment.
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
	unique, doubles := decode.Unique(fresh)
	s.problems = append(s.problems, doubles...)
	s.objects = append(unique, l.stillKept(unique, stale, &s)...)
	s.missing = l.stillMissing(s.objects)
	return s
}

// decoded is what a file says.
type decoded struct {
	text     []byte
	objects  []decode.Located
	problems []decode.Problem
	broken   bool // something in it could not be read
}

// read decodes one file; one that has not changed is not decoded again.
func (p *page) read(name string, c contents) decoded {
	if err := c.unreadable[name]; err != nil {
		return decoded{broken: true, problems: []decode.Problem{{File: name, Line: 1, Severity: decode.Error, Message: fmt.Sprintf("cannot be read: %v", err)}}}
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

// turn makes a page stand for what was read, and returns the objects that stay although they are not written now.
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

// stillKept leaves out what is written in another file by now, and says of the rest that it is in force.
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
			s.kept = append(s.kept, kept{Located: o, why: "its last good form is in force until everything in " + o.File + " can be read"})
		}
	}
	return objects
}

// stillMissing returns what earlier runs had and nobody has now.
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

// names returns the names of all files that are or were there, sorted.
func (l *ledger) names(c contents) []string {
	all := slices.AppendSeq(c.names(), maps.Keys(l.pages))
	slices.Sort(all)
	return slices.Compact(all)
}
