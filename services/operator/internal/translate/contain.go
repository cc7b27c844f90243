package translate

import (
	"log/slog"
	"runtime/debug"
)

// Contain calls a function that translates an object, and reports whether it has returned. It recovers from a panic and
// logs it, because one object must not end the process that serves all Gateways. The caller then keeps config,
// generated objects and status as they are.
func Contain(log *slog.Logger, ref ObjectRef, translate func()) (ok bool) {
	cause, stack := Recovered(translate)
	if cause != nil {
		log.Error("translation failed, keep config and objects", "object", ref.String(), "panic", cause, "stack", stack)
	}
	return cause == nil
}

// Recovered calls a function, and returns the value and the stack of its panic; nil if it has returned.
func Recovered(f func()) (cause any, stack string) {
	defer func() {
		if cause = recover(); cause != nil {
			stack = string(debug.Stack())
		}
	}()
	f()
	return nil, ""
}
