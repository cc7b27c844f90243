package resource

// Annotations of an object whose current version the operator has not read, because the object does not fit into the
// memory of its namespace. Only the operator sets them, on its own copy of the object.
const (
	// UnreadAnnotation contains the reason. The object has the content of the version that was read last.
	UnreadAnnotation = "stunner.l7mp.io/unread"
	// EmptyAnnotation is set in addition if no version was read: the object has only metadata, its class or parents,
	// and its status.
	EmptyAnnotation = "stunner.l7mp.io/unread-empty"
)

// Unread returns why the operator has not read the current version of an object; "" if it has.
func Unread(o Object) string { return o.GetAnnotations()[UnreadAnnotation] }

// Empty returns why the operator has read no version of an object; "" if it has read one.
func Empty(o Object) string {
	if o.GetAnnotations()[EmptyAnnotation] == "" {
		return ""
	}
	return Unread(o)
}
