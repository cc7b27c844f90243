package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/render"
)

func TestQuote(t *testing.T) {
	text := "a: true # true\nb: {x: 1.5, é: it's}\nc: 007\r\n"
	got := Quote([]byte(text), []render.Span{
		{Line: 1, Column: 4, Length: 4}, {Line: 2, Column: 8, Length: 3}, {Line: 2, Column: 16, Length: 4},
		{Line: 3, Column: 4, Length: 3},
		{Line: 0, Column: 1, Length: 1}, {Line: 9, Column: 1, Length: 1}, {Line: 1, Column: 14, Length: 9}, // not in the text
	})
	if want := "a: 'true' # true\nb: {x: '1.5', é: 'it''s'}\nc: '007'\r\n"; string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"a.yaml", "b.yml", "c.txt", ".hidden.yaml", "sub/d.yaml", "sub/deeper/e.yaml", ".git/f.yaml",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	units, err := Read([]string{dir, filepath.Join(dir, "c.txt"), Stdin}, strings.NewReader("from stdin"))
	if err != nil || len(units) != 1 {
		t.Fatal(units, err)
	}
	files := units[0].Files
	var got []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		got = append(got, strings.TrimPrefix(path, dir+"/")+"="+string(files[path]))
	}
	want := []string{"-=from stdin", "a.yaml=a.yaml", "b.yml=b.yml", "c.txt=c.txt", "sub/d.yaml=sub/d.yaml"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadFails(t *testing.T) {
	empty := t.TempDir()
	for _, path := range []string{empty, filepath.Join(empty, "missing.yaml")} {
		if _, err := Read([]string{path}, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want one that names the path", path, err)
		}
	}
}
