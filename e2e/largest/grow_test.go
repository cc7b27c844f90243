package largest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
)

// growth makes a value of any size. For each field, the API server accepts only some growths.
type growth struct {
	name string
	// words are the strings in values that are made from the schema.
	words words
	// grow returns a value of a size: the number of elements of a list or map, or the length of a string.
	grow func(n *node, base any, w words, size int) any
}

// growths are the growths of each form. Growths with larger or more common values come first.
var growths = map[form][]growth{}

func init() {
	growths[list] = []growth{
		{"copies", families[0], copies(func(any, int, string) bool { return false })},
		{"copies with other names and numbers", families[0], copies(func(_ any, _ int, field string) bool {
			return field == "name" || strings.HasSuffix(strings.ToLower(field), "port")
		})},
		{"copies with other values", families[0], copies(func(any, int, string) bool { return true })},
	}
	for _, w := range families {
		growths[list] = append(growths[list], growth{w.name, w, elementsOf})
	}
	for _, w := range families {
		growths[dictionary] = append(growths[dictionary],
			growth{"entries with long values, " + w.name, w, entriesOf(strings.Repeat("v", 60))},
			growth{"entries, " + w.name, w, entriesOf("")})
	}
	growths[text] = []growth{
		{"repeated base value", families[0], func(n *node, base any, _ words, size int) any { return repeatBase(n, base, size) }},
	}
	for _, unit := range []string{"x", "0", strings.Repeat("x", 62) + ".", "/x"} {
		w := families[0]
		if unit == "0" {
			w = numbers
		}
		grow := func(n *node, _ any, w words, size int) any {
			return n.encode(fill(unit, size-len(w.at(0))) + w.at(0))
		}
		growths[text] = append(growths[text], growth{fmt.Sprintf("%.3q", unit), w, grow})
	}
}

// fill repeats a unit up to a length.
func fill(unit string, size int) string {
	size = max(size, 0)
	return strings.Repeat(unit, size/len(unit)+1)[:size]
}

// encode returns a string in the encoding of its field.
func (n *node) encode(s string) string {
	if n.Format == "byte" {
		return base64.StdEncoding.EncodeToString([]byte(s))
	}
	return s
}

// repeatBase repeats the text in the base object, such as a certificate, to a size.
func repeatBase(n *node, base any, size int) any {
	s, _ := base.(string)
	if n.Format == "byte" {
		plain, _ := base64.StdEncoding.DecodeString(s)
		s = string(plain)
	}
	if s == "" {
		return nil
	}
	return n.encode(strings.Repeat(s, max(1, size/len(s))))
}

// elementsOf returns a list of the smallest elements.
func elementsOf(n *node, _ any, w words, size int) any {
	all := make([]any, size)
	for i := range all {
		all[i] = n.Items.smallest(w, i)
	}
	return all
}

// copies returns a list of copies of the first element in the base object. Strings and numbers of fields that must
// differ depend on the number of the copy.
func copies(differs func(value any, i int, field string) bool) func(*node, any, words, int) any {
	return func(_ *node, base any, _ words, size int) any {
		old, _ := base.([]any)
		if len(old) == 0 {
			return nil
		}
		all := make([]any, size)
		for i := range all {
			if all[i] = old[0]; i > 0 {
				all[i] = vary(old[0], i, "", differs)
			}
		}
		return all
	}
}

// vary returns a value with other strings and numbers in the fields that must differ.
func vary(value any, i int, field string, differs func(any, int, string) bool) any {
	switch v := value.(type) {
	case map[string]any:
		v = maps.Clone(v)
		for k := range v {
			v[k] = vary(v[k], i, k, differs)
		}
		return v
	case []any:
		all := make([]any, len(v))
		for j := range v {
			all[j] = vary(v[j], i, field, differs)
		}
		return all
	case string:
		if differs(v, i, field) {
			return other(v, i)
		}
	case int64:
		if differs(v, i, field) {
			return v + int64(i)
		}
	case float64:
		if differs(v, i, field) {
			return v + float64(i)
		}
	}
	return value
}

// other returns another string of the same kind: address, prefix or name.
func other(s string, i int) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return netip.PrefixFrom(advance(p.Addr(), i), p.Addr().BitLen()).String()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return advance(a, i).String()
	}
	number := fmt.Sprintf("x%d", i)
	if len(s) > len(number)+20 { // a long name keeps its length
		return s[:len(s)-len(number)] + number
	}
	return s + number
}

func advance(a netip.Addr, i int) netip.Addr {
	raw := a.AsSlice()
	for at := len(raw) - 1; at >= 0 && i > 0; at-- {
		i += int(raw[at])
		raw[at], i = byte(i), i>>8
	}
	next, _ := netip.AddrFromSlice(raw) // raw has a valid length
	return next
}

// entriesOf returns a map of many entries, including the entries of the base object.
func entriesOf(long string) func(*node, any, words, int) any {
	return func(n *node, base any, w words, size int) any {
		old, _ := base.(map[string]any)
		all := maps.Clone(old)
		if all == nil {
			all = map[string]any{}
		}
		value := n.value().resolve()
		for i := len(all); i < size; i++ {
			if value.form() == text && long != "" {
				all["k"+w.at(i)] = value.encode(long)
			} else {
				all["k"+w.at(i)] = value.smallest(w, i)
			}
		}
		return all
	}
}

// grown returns an object in which a field has a size, or nil if the growth does not apply to the field.
func (n *node) grown(base map[string]any, f field, y growth, size int) map[string]any {
	applies := true
	made := n.with(base, f.path, y.words, func(n *node, value any, w words) any {
		grown := y.grow(n, value, w, size)
		if grown == nil {
			applies = false
		}
		return grown
	})
	if !applies {
		return nil
	}
	return made.(map[string]any)
}

// bytesOf returns the JSON of an object.
func bytesOf(o map[string]any) []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // values are decoded from JSON, or are of simple types
	}
	return data
}
