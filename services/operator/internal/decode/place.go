package decode

import "bytes"

// FieldLine returns the line of a field of an object in a YAML file. If the object does not contain the field, it
// returns the line of the nearest parent that the object contains, and found is false. object is the line at which the
// object begins, as in Located. Each call parses the file, so that objects need not keep their text.
func FieldLine(data []byte, object int, field string) (line int, found bool) {
	for _, p := range split(data) {
		end := p.line + bytes.Count(p.text, []byte("\n"))
		if object < p.line || object > end {
			continue
		}
		nodes, _ := parse(yamlVersion.ReplaceAll(bytes.TrimPrefix(p.text, []byte("\uFEFF")), []byte("#YAML 1.")))
		for _, n := range nodes {
			root, err := (&builder{base: p.line - 1}).build(n.Content[0], nil, 0, 0)
			if err != nil {
				continue
			}
			if o := root.objectAt(object); o != nil {
				at := o.find(field)
				return at.line, field == "" || at.path() == field
			}
		}
	}
	return object, false
}

// objectAt returns the object that begins at a line: a document, or an item of a List.
func (v *value) objectAt(line int) *value {
	if v.line == line && v.textAt("kind") != "List" {
		return v
	}
	if items := v.get("items"); items != nil {
		for _, item := range items.items {
			if item.line == line {
				item.parent = nil
				return item
			}
		}
	}
	return nil
}

// Place is where an object begins in a YAML file, which need not be valid.
type Place struct {
	Line       int
	Kind, Name string
}

// Places returns the objects in a YAML file that have a kind.
func Places(data []byte) (places []Place) {
	for _, p := range split(data) {
		nodes, _ := parse(yamlVersion.ReplaceAll(bytes.TrimPrefix(p.text, []byte("\uFEFF")), []byte("#YAML 1.")))
		for _, n := range nodes {
			root, err := (&builder{base: p.line - 1}).build(n.Content[0], nil, 0, 0)
			if err != nil {
				continue
			}
			all := []*value{root}
			if items := root.get("items"); items != nil && root.textAt("kind") == "List" {
				all = items.items
			}
			for _, o := range all {
				if kind := o.textAt("kind"); kind != "" {
					places = append(places, Place{o.line, kind, o.textAt("metadata", "name")})
				}
			}
		}
	}
	return places
}
