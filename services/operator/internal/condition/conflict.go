package condition

import (
	"regexp"
)

// SoleInstallation means that one installation of the operator has the controller name of a GatewayClass. Installations
// are NAMESPACE@TIME.
func SoleInstallation(installation string) Finding {
	return finding(ReasonSole, "the operator %s manages this GatewayClass", installation)
}

// SecondInstallation means that two installations of the operator have the same controller name. The operator parses
// the message, see InstallationsIn.
func SecondInstallation(managing, paused, namespace, controller string) Finding {
	return finding(ReasonSecond, "the operator %s manages this GatewayClass; the younger operator %s has the same "+
		"controllerName %s and is paused", managing, paused, controller).
		remedy("uninstall the operator in namespace %s, or give it another --controller-name", namespace)
}

// installation matches NAMESPACE@TIME.
var installation = regexp.MustCompile(`[a-z0-9][-a-z0-9]*@[-0-9]+T[:0-9]+Z`)

// InstallationsIn returns the installations NAMESPACE@TIME in a message of condition ControllerConflict: the one that
// manages the GatewayClass, and a paused one if there is one. It returns none for another message.
func InstallationsIn(message string) []string { return installation.FindAllString(message, 2) }
