package watch

import (
	"testing"
	"time"
)

func TestTaskIsStuckIfAUnitOfWorkLastsTooLong(t *testing.T) {
	var task Task
	now := time.Unix(0, 0)
	expect := func(want bool) {
		t.Helper()
		if got := task.Stuck(now); got != want {
			t.Errorf("after %v: stuck is %t, want %t", now.Sub(time.Unix(0, 0)), got, want)
		}
	}
	expect(false)
	now = now.Add(time.Hour)
	expect(false) // an idle task may wait for any time
	task.Begin()
	expect(false)
	now = now.Add(StuckAfter - 1)
	expect(false)
	task.End()
	task.Begin()
	now = now.Add(1)
	expect(false) // another unit of work
	now = now.Add(StuckAfter)
	expect(true)
	task.End()
	expect(false)
}
