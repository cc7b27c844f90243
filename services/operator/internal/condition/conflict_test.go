package condition

import (
	"slices"
	"testing"
)

// The message about a second installation is the problem and the remedy, and the operator finds both installations in
// it.
func TestSecondInstallation(t *testing.T) {
	const older, younger = "system@2026-11-29T21:58:47Z", "other@2026-11-29T22:01:47Z"
	f := SecondInstallation(older, younger, "other", "stunner.l7mp.io/calls")
	c := True(ControllerConflict, f)
	const want = "the operator " + older + " manages this GatewayClass; the younger operator " + younger + " has the same controllerName " +
		"stunner.l7mp.io/calls and is paused: uninstall the operator in namespace other, or give it another --controller-name"
	if c.Message != want || !slices.Equal(InstallationsIn(c.Message), []string{older, younger}) {
		t.Errorf("%q", c.Message)
	}
	all := f.Findings()
	if len(all) != 1 || all[0].Remedy != "uninstall the operator in namespace other, or give it another --controller-name" {
		t.Errorf("findings %+v", all)
	}
}
