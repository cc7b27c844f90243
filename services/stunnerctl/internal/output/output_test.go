package output

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// hostile contains the escape sequences of terminals, C1 controls, bidirectional text and invalid UTF-8.
const hostile = "a\x1b[31m\x1b]0;title\x07\r\nb\u009b2J\u202egpj\u2066\U000e0041\x00\xff\u2028c"

func table() Table {
	t := Table{Columns: []Column{
		{Name: "POD"}, {Name: "STATE", Drop: 1}, {Name: "CALLS", Right: true}, {Name: "VERSION", Drop: 2},
		{Name: "REVISION", Wide: true}, {Name: "MESSAGE", Wrap: true},
	}}
	t.Add(T("frankfurt-1"), Cell{"READY", Good}, T(7), T("v1.2.3"), T("abc"), T(""))
	t.Add(T("frankfurt-22"), Cell{"NOT-READY", Bad}, T(1234), T("v1.2.3"), T("abcdef"),
		T("listener udp: address already in use: stop the other program or change the port of the listener"))
	t.Add(T("münchen-1"), Cell{"TERMINATING", Warning}, T(0), T(""), T(""), T("äöü word"))
	return t
}

func TestTable(t *testing.T) {
	for name, p := range map[string]Printer{
		"default":   {},
		"wide":      {format: FormatWide, Width: 40},
		"color":     {Color: true},
		"width100":  {Width: 100},
		"width60":   {Width: 60, Color: true},
		"width20":   {Width: 20},
		"noheaders": {NoHeaders: true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if p.Out = &out; p.format == "" {
				p.format = FormatTable
			}
			if err := p.Table(table()); err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".txt"
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || out.String() != string(want) {
				t.Errorf("%v\ngot\n%s\nwant\n%s", err, out.String(), want)
			}
			for line := range strings.Lines(out.String()) {
				plain := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").
					Replace(line)
				if width := utf8.RuneCountInString(plain) - 1; p.Width >= 60 && !p.IsWide() && width > p.Width {
					t.Errorf("%d columns: %q", width, plain)
				}
			}
		})
	}
}

// A terminal breaks longer lines, which makes a table unreadable.
func TestClip(t *testing.T) {
	const id, user, client = "5d41402abc4b2a76", "7d793037a0760186574b0282f2f435e7", "2001:db8:1234:5678:9abc:def0:1234:5678"
	for width, want := range map[int]string{
		0:   id + "   " + user + "   " + client + "   7",
		120: id + "   " + user + "   " + client + "   7",
		90:  id + "   7d793037a076",
		52:  id + "   7d79303…2f435e7",
		10:  id,
	} {
		table := Table{Columns: []Column{
			{Name: "SESSION"}, {Name: "USER", Clip: true}, {Name: "CLIENT", Clip: true}, {Name: "RX", Drop: 1},
		}}
		table.Add(T(id), T(user), T(client), T(7))
		var out bytes.Buffer
		p := Printer{Out: &out, format: FormatTable, Width: width}
		if err := p.Table(table); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(line) - 1; width >= 52 && n > width {
				t.Errorf("width %d: %d columns: %s", width, n, line)
			}
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("width %d: no %q in\n%s", width, want, out.String())
		}
	}
}

func TestHostileTexts(t *testing.T) {
	isClean := func(name, text string) {
		t.Helper()
		for _, r := range text {
			if r != '\n' && r != '\t' && !strings.ContainsRune(Clean(string(r)), r) {
				t.Errorf("%s: %q has the character %U", name, text, r)
			}
		}
		if strings.ContainsAny(text, "\x1b\r\x00\u009b\u202e\u2028\U000e0041") {
			t.Errorf("%s: %q", name, text)
		}
	}
	var out bytes.Buffer
	for _, format := range []string{"table", "wide", "json", "yaml", "jsonpath={.text}{.list[*].name}"} {
		out.Reset()
		p, err := New(&out, format, false)
		if err != nil {
			t.Fatal(err)
		}
		if p.IsTable() {
			h := Table{Columns: []Column{{Name: "A"}, {Name: "B"}}}
			h.Add(T(hostile), T("end"))
			err = p.Table(h)
			if lines := strings.Count(out.String(), "\n"); lines != 2 {
				t.Errorf("%d lines: %q", lines, out.String())
			}
		} else {
			err = p.Value(map[string]any{"text": hostile, "list": []any{map[string]any{"name": hostile}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		isClean(format, out.String())
		if format == "json" {
			var back map[string]any
			if err := json.Unmarshal(out.Bytes(), &back); err != nil {
				t.Fatal(err)
			}
			if want := strings.ToValidUTF8(hostile, "\ufffd"); back["text"] != want {
				t.Errorf("the value has changed: %q, want %q", back["text"], want)
			}
		}
	}
	isClean("Clean", Clean(hostile))
	if got := Clean("a\x1b[0m\nü"); got != `a\u001b[0m\u000aü` {
		t.Errorf("%q", got)
	}
}

func TestFormats(t *testing.T) {
	value := map[string]any{"n": 12345678901, "items": []any{map[string]any{"pod": "a"}, map[string]any{"pod": "b"}}}
	for format, want := range map[string]string{
		"json":                     "{\n  \"items\": [\n    {\n      \"pod\": \"a\"\n    },\n    {\n      \"pod\": \"b\"\n    }\n  ],\n  \"n\": 12345678901\n}\n",
		"yaml":                     "items:\n- pod: a\n- pod: b\n\"n\": 12345678901\n",
		"jsonpath={.items[*].pod}": "a b\n",
		"jsonpath={.n} {.none}":    "12345678901 \n",
		`jsonpath={range .items[*]}{.pod}{"\n"}{end}`: "a\nb\n\n",
	} {
		var out bytes.Buffer
		p, err := New(&out, format, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Value(value); err != nil || out.String() != want {
			t.Errorf("%s: %q %v, want %q", format, out.String(), err, want)
		}
	}
	for format, want := range map[string]string{
		"xml":              "use table, wide, json, yaml or jsonpath=TEMPLATE",
		"jsonpath={.items": "use a template as in kubectl",
	} {
		if _, err := New(os.Stdout, format, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", format, err)
		}
	}
	if p, err := New(&bytes.Buffer{}, "summary", false); err != nil || !p.IsTable() || p.Color {
		t.Error(p, err)
	}
}

func TestHugeTable(t *testing.T) {
	huge := Table{Columns: []Column{{Name: "A"}, {Name: "B", Wrap: true}}}
	for range 20_000 {
		huge.Add(T("session"), T(strings.Repeat("x", 100)))
	}
	start := time.Now()
	p := Printer{Out: &bytes.Buffer{}, format: FormatTable, Width: 80}
	if err := p.Table(huge); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Error("20,000 rows take", took)
	}
}

func TestUnits(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 123_456: "123 kB", 9_940_000: "9.9 MB", 12_000_000_000: "12 GB",
		math.MaxUint64: "18 EB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	now := time.Unix(1_000_000, 0)
	for age, want := range map[time.Duration]string{
		-time.Second: "0s", 90 * time.Second: "90s", 49 * time.Hour: "2d1h",
	} {
		if got := Age(now.Add(-age), now); got != want {
			t.Errorf("%v: %q, want %q", age, got, want)
		}
	}
	if got := Age(time.Time{}, now); got != "" {
		t.Error(got)
	}
	if got := wrap("aaaa bb cccccccccccc d", 5); !reflect.DeepEqual(
		got,
		[]string{"aaaa", "bb", "ccccc", "ccccc", "cc d"},
	) {
		t.Errorf("%q", got)
	}
}
