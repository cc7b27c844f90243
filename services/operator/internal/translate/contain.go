package translate

import (
	"log/slog"
	"runtime/debug"
)

// Contain calls a function that translates an object, and reports whether it has returned. It recovers from a panic and
// logs it, because one object must not end the process that serves all Gateways. The caller then keeps config, generated
// objects and status as they are.
func Contain(log *slog.Logger, ref ObjectRef, translate func()) (ok bool) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("translation failed, keep config and objects", "object", ref.String(), "panic", cause,
				"stack", string(debug.Stack()))
		}
	}()
	translate()
	return true
}
