package file

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// node returns a document with one object; mark distinguishes its versions.
func node(name, mark string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata:\n  name: %s\n  labels: {mark: \"%s\"}\n", name, mark)
}

func docs(list ...string) string { return strings.Join(list, "---\n") }

// ledgerTest has a ledger, its files and its clock.
type ledgerTest struct {
	t      *testing.T
	ledger *ledger
	files  contents
	now    time.Time
}

func newLedgerTest(t *testing.T, inventory map[string][]identity) *ledgerTest {
	return &ledgerTest{t: t, ledger: newLedger(inventory), now: time.Unix(1_000_000, 0),
		files: contents{files: map[string][]byte{}, unreadable: map[string]error{}}}
}

func (w *ledgerTest) write(name, text string) { w.files.files[name] = []byte(text) }

// expect updates the ledger and compares the objects in force, as NAME=MARK.
func (w *ledgerTest) expect(why string, want ...string) reading {
	w.t.Helper()
	r := w.ledger.update(w.files, w.now)
	got := []string{}
	for _, o := range r.objects {
		got = append(got, o.GetName()+"="+o.GetLabels()["mark"])
	}
	slices.Sort(got)
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		w.t.Errorf("%s: in force (-want +got):\n%s", why, diff)
	}
	return r
}

// settle advances the clock by confirmAbsence.
func (w *ledgerTest) settle() { w.now = w.now.Add(confirmAbsence) }

func TestLedgerBrokenYAMLLosesNothing(t *testing.T) {
	whole := docs(node("a", "1"), node("b", "1"), node("c", "1"))
	for _, c := range []struct {
		name, text string
		want       []string // in force while the file is so
	}{
		{"invalid indentation in the middle", docs(
			node("a", "2"), "apiVersion: v1\nkind: Node\nmetadata:\n  name: b\n   labels: {mark: 2}\n", node("c", "2"),
		), []string{"a=2", "b=1", "c=2"}},
		{"cut off inside the second document", whole[:len(node("a", "1"))+40], []string{"a=1", "b=1", "c=1"}},
		{"cut off inside the first word", "api", []string{"a=1", "b=1", "c=1"}},
		{"a wrong type", docs(
			node("a", "1"), strings.Replace(node("b", "2"), `{mark: "2"}`, "[mark]", 1), node("c", "1"),
		), []string{"a=1", "b=1", "c=1"}},
		{"the name is gone", docs(
			node("a", "1"), strings.Replace(node("b", "2"), "name: b", "nam: b", 1), node("c", "1"),
		), []string{"a=1", "b=1", "c=1"}},
		{"one invalid and one taken absent", docs(node("a", "1"), "{"), []string{"a=1", "b=1", "c=1"}},
		{"one invalid and the others in another order", docs(
			node("c", "2"), "x: ]\n", node("a", "2"),
		), []string{"a=2", "b=1", "c=2"}},
		{"binary rubbish", "\x00\xff\x00", []string{"a=1", "b=1", "c=1"}},
		{"emptied", "", []string{"a=1", "b=1", "c=1"}},
		{"white space", " \n\n", []string{"a=1", "b=1", "c=1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newLedgerTest(t, nil)
			w.write("all.yaml", whole)
			w.expect("at first", "a=1", "b=1", "c=1")
			w.write("all.yaml", c.text)
			w.expect("just spoilt", c.want...)
			for range 5 {
				w.settle()
				w.expect("spoilt for long", c.want...)
			}
			w.write("all.yaml", docs(node("a", "3"), node("c", "3")))
			w.expect("mended, b only just absent", "a=3", "b=1", "c=3")
			w.settle()
			if r := w.expect("mended", "a=3", "c=3"); len(r.problems)+len(r.kept) > 0 || !r.next.IsZero() {
				t.Errorf("problems %v, kept %v, next look %s after the file was mended", r.problems, r.kept, r.next)
			}
		})
	}
}

// The beginning of a file may be valid, with an incomplete last value, name or marker.
func TestLedgerHoldsAFileThatIsCutInALine(t *testing.T) {
	whole := "# On top.\n" + node("a", "1") + "---\n" + strings.Replace(node("b", "1"), `{mark: "1"}`, "\n    mark: v12", 1)
	for end := 1; end < len(whole); end++ {
		w := newLedgerTest(t, nil)
		w.write("all.yaml", whole)
		w.expect("at first", "a=1", "b=v12")
		w.write("all.yaml", whole[:end])
		comment := end <= len("# On top.\n")
		if comment || whole[end-1] != '\n' && whole[end] != '\n' {
			w.expect(fmt.Sprintf("cut at %d", end), "a=1", "b=v12")
			w.settle()
			w.expect(fmt.Sprintf("cut at %d for long", end), "a=1", "b=v12")
		}
		w.write("all.yaml", whole)
		if r := w.expect("whole again", "a=1", "b=v12"); len(r.problems) > 0 {
			t.Errorf("cut at %d, then whole: problems %v", end, r.problems)
		}
	}
}

func TestLedgerConfirmsAbsence(t *testing.T) {
	w := newLedgerTest(t, nil)
	w.write("a.yaml", docs(node("a", "1"), node("b", "1")))
	w.expect("at first", "a=1", "b=1")
	w.write("a.yaml", node("a", "1"))
	if r := w.expect("b absent", "a=1", "b=1"); r.next != w.now.Add(confirmAbsence) {
		t.Errorf("next look at %s, want %s from now", r.next, confirmAbsence)
	}
	w.write("a.yaml", docs(node("a", "1"), node("b", "2")))
	w.expect("b back", "a=1", "b=2")
	w.settle()
	w.expect("b still back", "a=1", "b=2")
	delete(w.files.files, "a.yaml")
	w.expect("the file absent", "a=1", "b=2")
	w.settle()
	w.expect("the file gone")
}

func TestLedgerFollowsAnObjectIntoAnotherFile(t *testing.T) {
	w := newLedgerTest(t, nil)
	w.write("a.yaml", docs(node("a", "1"), node("b", "1")))
	w.expect("at first", "a=1", "b=1")
	w.write("a.yaml", docs(node("a", "1"), "{"))
	w.write("b.yaml", node("b", "2"))
	w.expect("b moved out of a file that is invalid", "a=1", "b=2")
	w.write("a.yaml", node("a", "1"))
	w.settle()
	w.expect("mended", "a=1", "b=2")
	w.settle()
	w.expect("settled", "a=1", "b=2")
}

func TestLedgerNamesBothPlacesOfADouble(t *testing.T) {
	w := newLedgerTest(t, nil)
	w.write("b.yaml", node("a", "2"))
	w.write("a.yaml", "# first\n"+node("a", "1"))
	r := w.expect("twice", "a=1")
	if len(r.problems) != 1 || !strings.Contains(r.problems[0].Message, "a.yaml:2") ||
		!strings.Contains(r.problems[0].Message, "b.yaml:1") {
		t.Errorf("problems %v, want one that names a.yaml:2 and b.yaml:1", r.problems)
	}
}

// A copy of a file, with any name, changes nothing while the file has the object, while the file is invalid, and after
// a restart. The copy is used when the file no longer has the object.
func TestLedgerPrefersTheFileInUseToItsCopies(t *testing.T) {
	for _, name := range []string{"a-old.yaml", "b.yaml.bak.yaml", "z.yaml"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " restart ", restart), func(t *testing.T) {
				w := newLedgerTest(t, nil)
				again := func() {
					if restart {
						w.ledger = newLedger(w.ledger.inventory())
					}
				}
				w.write("b.yaml", node("a", "new"))
				w.expect("at first", "a=new")
				w.write(name, node("a", "old"))
				again()
				if r := w.expect("beside a copy", "a=new"); len(r.problems) != 1 || r.problems[0].File != name {
					t.Errorf("problems %v", r.problems)
				}
				w.write("b.yaml", node("a", "newer"))
				w.expect("changed beside a copy", "a=newer")
				w.write("b.yaml", "{")
				if r := w.expect("invalid beside a copy", "a=newer"); len(r.problems) != 2 {
					t.Errorf("problems %v", r.problems)
				}
				w.settle()
				w.expect("invalid for long beside a copy", "a=newer")
				w.write("b.yaml", node("a", "newest"))
				w.expect("valid again", "a=newest")
				delete(w.files.files, "b.yaml")
				w.expect("the file is gone", "a=old")
				again()
				if r := w.expect("the copy is used", "a=old"); len(r.problems) != 0 {
					t.Errorf("problems %v", r.problems)
				}
				w.write("b.yaml", node("a", "back"))
				w.expect("the file is back", "a=old")
			})
		}
	}
}

// After a restart, a copy does not replace an object whose file cannot be read: the object is missing.
func TestLedgerWaitsForTheFileAndNotForItsCopy(t *testing.T) {
	w := newLedgerTest(t, nil)
	w.write("b.yaml", node("a", "new"))
	w.expect("at first", "a=new")
	w.write("b.yaml", "{")
	w.write("a-old.yaml", node("a", "old"))
	w.ledger = newLedger(w.ledger.inventory())
	if r := w.expect("after a restart"); len(r.missing) != 1 {
		t.Errorf("missing %v", r.missing)
	}
	w.write("b.yaml", node("a", "new"))
	w.expect("valid again", "a=new")
}

func TestLedgerKeepsObjectsOfAnUnreadableFile(t *testing.T) {
	w := newLedgerTest(t, nil)
	w.write("a.yaml", node("a", "1"))
	w.expect("at first", "a=1")
	delete(w.files.files, "a.yaml")
	w.files.unreadable["a.yaml"] = fmt.Errorf("permission denied")
	w.expect("locked", "a=1")
	w.settle()
	if r := w.expect("locked for long", "a=1"); len(r.problems) != 1 || len(r.kept) != 1 {
		t.Errorf("problems %v, kept %v, want one of each", r.problems, r.kept)
	}
}

func TestLedgerKeepsObjectsOfAnEarlierRun(t *testing.T) {
	before := newLedgerTest(t, nil)
	before.write("a.yaml", docs(node("a", "1"), node("b", "1")))
	before.write("c.yaml", node("c", "1"))
	before.expect("the run before", "a=1", "b=1", "c=1")

	w := newLedgerTest(t, before.ledger.inventory())
	w.write("a.yaml", docs(node("a", "1"), "{"))
	r := w.expect("restarted on a invalid file", "a=1")
	if len(r.missing) != 1 || r.missing[0].Name != "b" {
		t.Errorf("missing %v, want b: its file is invalid, that of c is gone", r.missing)
	}
	again := newLedgerTest(t, w.ledger.inventory())
	again.write("a.yaml", docs(node("a", "1"), "{"))
	if r := again.expect("restarted once more", "a=1"); len(r.missing) != 1 {
		t.Errorf("missing %v, want b after the second restart as well", r.missing)
	}
	w.write("a.yaml", node("a", "1"))
	if r := w.expect("mended without b", "a=1"); len(r.missing) != 0 {
		t.Errorf("missing %v, want nothing: b was taken absent", r.missing)
	}
}
