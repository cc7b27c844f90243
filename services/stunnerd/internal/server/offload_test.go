package server

import (
	"reflect"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
)

// The status of the process has all fields of the in-kernel path.
func TestOffloadStatus(t *testing.T) {
	got := offloadStatus(offload.Status{
		Engine: "Auto", Mechanism: offload.TCX, Reason: "why", Interfaces: []string{"eth0"},
		Bindings: 1, MaxBindings: 2, Exhausted: 3,
	})
	want := inspection.OffloadStatus{
		Engine: "Auto", Mechanism: "TCX", Reason: "why", Interfaces: []string{"eth0"},
		Bindings: 1, MaxBindings: 2, Exhausted: 3,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
