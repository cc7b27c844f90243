package largest

import (
	"testing"
)

// Each object is in one flood. The objects of a flood do not need different objects with the same name.
func TestFloodsHaveAllObjects(t *testing.T) {
	var all []*candidate
	of := map[string][]*candidate{}
	for _, r := range rows {
		for range 3 {
			c := &candidate{row: r}
			all, of[r.name] = append(all, c), append(of[r.name], c)
		}
	}
	for _, r := range rows {
		for name, used := range r.uses {
			for _, u := range of[used][:maxUsed] {
				all = append(all, &candidate{row: r, using: map[string]*candidate{name: u}})
			}
		}
	}
	count := map[*candidate]int{}
	floods := floodsOf(all)
	for i, flood := range floods {
		using, kinds := map[string]*candidate{}, map[string]bool{}
		for _, c := range flood {
			count[c]++
			kinds[c.row.name] = true
			for name := range c.row.uses {
				u := c.using[name]
				if before, is := using[name]; is && u != nil && before != nil && before != u {
					t.Errorf("flood %d needs two objects %s", i, name)
				}
				if u != nil || using[name] == nil {
					using[name] = u
				}
			}
		}
		if len(kinds) > sideBySide {
			t.Errorf("flood %d has objects of %d rows, want at most %d", i, len(kinds), sideBySide)
		}
	}
	for _, c := range all {
		if count[c] != 1 {
			t.Errorf("%s is in %d floods", subjectOf([]*candidate{c}), count[c])
		}
	}
	if len(floods) > len(rows) {
		t.Errorf("%d floods of %d rows", len(floods), len(rows))
	}
}
