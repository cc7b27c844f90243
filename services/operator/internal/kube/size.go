package kube

import "reflect"

// sizeOf returns an estimate of the memory in bytes that a value takes, with all values to which it refers. It is an
// upper bound for the objects of the Kubernetes API, which have no cycles.
func sizeOf(v any) int {
	value := reflect.ValueOf(v)
	return int(value.Type().Size()) + sizeBehind(value)
}

// mapEntry is the memory in bytes that a map takes for an entry in addition to key and value.
const mapEntry = 16

// sizeBehind returns the memory to which a value refers, without the value itself.
func sizeBehind(v reflect.Value) (bytes int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return int(v.Elem().Type().Size()) + sizeBehind(v.Elem())
	case reflect.Slice:
		element := v.Type().Elem()
		bytes = v.Len() * int(element.Size())
		if !refers(element.Kind()) {
			return bytes
		}
		for i := range v.Len() {
			bytes += sizeBehind(v.Index(i))
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			key, value := entries.Key(), entries.Value()
			bytes += int(key.Type().Size()+value.Type().Size()) + mapEntry + sizeBehind(key) + sizeBehind(value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			bytes += sizeBehind(v.Field(i))
		}
	}
	return bytes
}

// refers reports whether values of a kind can refer to other memory.
func refers(k reflect.Kind) bool {
	switch k {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map, reflect.Struct, reflect.Array:
		return true
	}
	return false
}
