package file

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// confirmAbsence is how long an object must be absent from the input folder before it counts as removed. A short
// absence is normal, because editors and copy programs remove, truncate and rename files.
const confirmAbsence = 250 * time.Millisecond

// identity identifies an object by API version, kind, namespace and name. It is saved, so that it identifies the object
// also after a restart.
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

// ledger records, by file, which objects of the input folder are in use. An object stays in use even if it cannot be
// read at the moment, because invalid YAML must not remove anything:
//
//   - While a document of a file is invalid, no object of that file is removed. The valid documents of the file take
//     effect.
//   - A file without content changes nothing, because a program may be writing it. To remove its objects, users delete
//     the file.
//   - A file that is the beginning of its former content changes nothing, for the same reason, if it has only comments
//     or ends within a line.
//   - An object that no file contains is removed after confirmAbsence.
//   - Of several files with one object, such as a file and its backup copy, the file whose object is in use stays in
//     use, also if it becomes invalid. The other files are problems. If the files appear at the same time, the first by
//     name is used.
//
// The ledger does no I/O and reads no clock.
type ledger struct {
	files map[string]*fileState
	// sources are the files of the objects in use, and copies the other files with the same object.
	sources map[identity]string
	copies  map[identity][]string
}

// fileState holds the objects of one file.
type fileState struct {
	// last is the result of the last read.
	last decoded
	// objects are the objects of the file that are in use, or copies of objects of other files.
	objects []decode.Located
	// invalid is set if a document of the file was invalid at the last read.
	invalid bool
	// absent are the objects in use that the file does not contain, with the time at which they were first absent.
	absent map[identity]time.Time
	// expected are the objects that were in use before a restart of the operator and that have not been read from this
	// file since. They count as removed only when the file was read without an error, or does not exist.
	expected []identity
}

// reading is the result of reading the input folder.
type reading struct {
	objects  []decode.Located // all objects in use
	problems []decode.Problem
	kept     []kept
	// missing are the objects that were in use before a restart of the operator and that cannot be read now.
	missing []identity
	// next is when the folder must be read again even if it does not change; zero if no such time is set.
	next time.Time
}

// isGatewayMissing reports whether r.missing contains the Gateway with the given key, NAMESPACE/NAME.
func (r reading) isGatewayMissing(key string) bool {
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
	l := &ledger{files: map[string]*fileState{}, sources: map[identity]string{}}
	for name, ids := range inventory {
		l.files[name] = &fileState{expected: ids}
		for _, id := range ids {
			l.sources[id] = name
		}
	}
	return l
}

// inventory returns the objects in use by file. It is saved for the next run of the operator.
func (l *ledger) inventory() map[string][]identity {
	all := map[string][]identity{}
	for name, p := range l.files {
		ids := slices.Clone(p.expected)
		for _, o := range p.objects {
			if id := identityOf(o.Object); l.sources[id] == name {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 {
			all[name] = ids
		}
	}
	return all
}

// update applies the contents of the input folder, and returns the objects that are in use afterwards.
func (l *ledger) update(c contents, now time.Time) reading {
	var s reading
	var fresh, stale []decode.Located
	for _, name := range l.names(c) {
		p := l.file(name)
		d := p.read(name, c)
		s.problems = append(s.problems, d.problems...)
		fresh = append(fresh, d.objects...)
		stale = append(stale, p.store(d, now, &s)...)
		if len(p.objects)+len(p.expected) == 0 {
			delete(l.files, name)
		}
	}
	read := slices.Clone(fresh)
	slices.SortStableFunc(fresh, l.inUseFirst)
	unique, duplicates := decode.Unique(l.withoutCopies(fresh, &s))
	slices.SortStableFunc(unique, byPlace)
	s.problems = append(s.problems, duplicates...)
	s.objects = append(unique, l.keptObjects(unique, stale, &s)...)
	s.missing = l.missingObjects(s.objects)
	l.setSources(s, read)
	return s
}

// inUseFirst compares objects: an object comes first if its file has the object in use. Other objects are sorted by
// place.
func (l *ledger) inUseFirst(a, b decode.Located) int {
	rank := func(o decode.Located) int {
		if l.sources[identityOf(o.Object)] == o.File {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), byPlace(a, b))
}

// withoutCopies returns the objects that are not copies of an object in use whose file is invalid at the moment. Each
// copy becomes a problem. If the other file got the object only after its own file became invalid, the object was
// moved, and is no copy.
func (l *ledger) withoutCopies(fresh []decode.Located, s *reading) []decode.Located {
	return slices.DeleteFunc(fresh, func(o decode.Located) bool {
		id := identityOf(o.Object)
		source := l.sources[id]
		if p := l.files[source]; p == nil || source == o.File || !p.keeps(id, slices.Contains(l.copies[id], o.File)) {
			return false
		}
		s.problems = append(s.problems, decode.Problem{File: o.File, Line: o.Line, Severity: decode.Error,
			Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, Field: "metadata.name",
			Message: fmt.Sprintf("is written twice: %s has it and cannot be read completely, so %s:%d is not in force; "+
				"correct %[1]s, or remove one", source, o.File, o.Line)})
		return true
	})
}

// keeps reports whether an object of the file stays in use although another file contains it too, because a document of
// this file is invalid. copied means that the other file already contained the object.
func (p *fileState) keeps(id identity, copied bool) bool {
	if slices.Contains(p.expected, id) {
		return true
	}
	_, absent := p.absent[id]
	return copied && p.invalid && !absent &&
		slices.ContainsFunc(p.objects, func(o decode.Located) bool { return identityOf(o.Object) == id })
}

// setSources records the files of the objects in use, and of their copies among the objects that were read. An object
// that is missing keeps its file.
func (l *ledger) setSources(s reading, read []decode.Located) {
	sources := make(map[identity]string, len(s.objects))
	for _, id := range s.missing {
		sources[id] = l.sources[id]
	}
	for _, o := range s.objects {
		sources[identityOf(o.Object)] = o.File
	}
	l.sources, l.copies = sources, map[identity][]string{}
	for _, o := range read {
		if id := identityOf(o.Object); sources[id] != o.File {
			l.copies[id] = append(l.copies[id], o.File)
		}
	}
}

// decoded is the result of decoding one file.
type decoded struct {
	text     []byte
	objects  []decode.Located
	problems []decode.Problem
	invalid  bool // a document is invalid
}

// read decodes one file. If the content of the file has not changed, it returns the previous result.
func (p *fileState) read(name string, c contents) decoded {
	if err := c.unreadable[name]; err != nil {
		remedy := remedyOf(err, pathOf(err, name))
		return decoded{invalid: true, problems: []decode.Problem{{File: name, Line: 1, Severity: decode.Error,
			Message: fmt.Sprintf("cannot be read: %v; what was in force before stays in force: %s", errno(err), remedy), Remedy: remedy}}}
	}
	text, present := c.files[name]
	switch {
	case !present:
		return decoded{}
	case p.last.text != nil && bytes.Equal(text, p.last.text):
		return p.last
	}
	d := decoded{text: text}
	d.objects, d.problems = decode.File(name, text)
	d.invalid = slices.ContainsFunc(d.problems, func(p decode.Problem) bool { return p.Severity == decode.Error })
	switch {
	case len(d.objects)+len(d.problems) == 0 && len(p.objects)+len(p.expected) > 0 &&
		(len(bytes.TrimSpace(text)) == 0 || bytes.HasPrefix(p.last.text, text)):
		return unfinished(name, 1, "is empty", "delete the file to remove it")
	case !d.invalid && cutInLine(text, p.last.text):
		return unfinished(name, bytes.Count(text, []byte("\n"))+1, "ends within a line of its former content",
			"write the rest, or end the line if the file is complete")
	}
	p.last = d
	return d
}

// unfinished is the result of reading a file that a program may be writing.
func unfinished(name string, line int, what, remedy string) decoded {
	return decoded{invalid: true, problems: []decode.Problem{{File: name, Line: line, Severity: decode.Info,
		Message: what + ": what it held stays in force; " + remedy, Remedy: remedy}}}
}

// cutInLine reports whether text is the beginning of whole and ends within a line, because a program is writing the
// file or the disk was full. The last value may be incomplete and valid nevertheless, such as port 34 of 3478.
func cutInLine(text, whole []byte) bool {
	rest, found := bytes.CutPrefix(whole, text)
	return found && len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) && len(bytes.TrimSpace(rest)) > 0 &&
		rest[0] != '\n' && rest[0] != '\r'
}

// store stores the result of reading a file. It returns the objects that stay in use although the file does not contain
// them now.
func (p *fileState) store(d decoded, now time.Time, s *reading) (stale []decode.Located) {
	written := identities(d.objects)
	absent := map[identity]time.Time{}
	for _, o := range p.objects {
		id := identityOf(o.Object)
		if written[id] {
			continue
		}
		since, before := p.absent[id]
		switch {
		case d.invalid:
		case before && now.Sub(since) >= confirmAbsence:
			continue
		case !before:
			since = now
			fallthrough
		default:
			absent[id] = since
			s.readAgainAt(since.Add(confirmAbsence))
		}
		stale = append(stale, o)
	}
	p.invalid = d.invalid
	p.expected = slices.DeleteFunc(p.expected, func(id identity) bool { return !d.invalid || written[id] })
	p.objects, p.absent = append(slices.Clone(d.objects), stale...), absent
	return stale
}

func (s *reading) readAgainAt(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// keptObjects returns those stale objects that no other file contains. If an object stays in use because of an invalid
// document, it is added to s.kept.
func (l *ledger) keptObjects(written, stale []decode.Located, s *reading) (objects []decode.Located) {
	have := identities(written)
	for _, o := range stale {
		id := identityOf(o.Object)
		if have[id] {
			continue
		}
		have[id] = true
		objects = append(objects, o)
		if _, absent := l.files[o.File].absent[id]; !absent {
			why := "its last good form is in force until everything in " + o.File + " can be read"
			s.kept = append(s.kept, kept{Located: o, why: why})
		}
	}
	return objects
}

// missingObjects returns the objects that were in use before a restart of the operator and that are not in use now.
func (l *ledger) missingObjects(objects []decode.Located) (missing []identity) {
	have := identities(objects)
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		for _, id := range l.files[name].expected {
			if !have[id] {
				missing = append(missing, id)
			}
		}
	}
	return missing
}

func (l *ledger) file(name string) *fileState {
	if l.files[name] == nil {
		l.files[name] = &fileState{}
	}
	return l.files[name]
}

// names returns the sorted names of the files that exist, and of the removed files whose objects are still in use.
func (l *ledger) names(c contents) []string {
	names := slices.Collect(maps.Keys(l.files))
	names = slices.AppendSeq(names, maps.Keys(c.files))
	names = slices.AppendSeq(names, maps.Keys(c.unreadable))
	slices.Sort(names)
	return slices.Compact(names)
}
