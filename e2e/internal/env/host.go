package env

import (
	"context"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Host is a product in a folder, with the paths and processes of its host.
type Host struct {
	// Input and Output are the folders of the operator, and Program is the file of stunnerd.
	Input, Output, Program string
	Operator, Auth         *harness.Process
	// AuthURL is the base URL of the auth service, and Discovery the address of config discovery.
	AuthURL, Discovery string
}

// Host returns the host. The shape has Input Folder.
func (e *Env) Host() Host {
	f := e.input.(*inFolder)
	return Host{
		Input: f.in(), Output: f.out(), Program: f.stunnerd(), Operator: f.operator, Auth: f.auth,
		AuthURL: "http://" + e.auth.address, Discovery: at(f.discovery),
	}
}

// Folders returns the input folder and the output folder. They exist only after Start.
func (e *Env) Folders() (input, output string) {
	f := e.input.(*inFolder)
	return f.in(), f.out()
}

// StartOperator starts the operator of a folder again after its end.
func (e *Env) StartOperator(ctx context.Context) error { return e.input.startOperator(ctx) }

// StartAuth starts the auth service again after its end, with further arguments. The last value of a flag counts.
func (e *Env) StartAuth(ctx context.Context, more ...string) error {
	a := e.auth
	a.arguments = append(a.arguments[:len(a.arguments):len(a.arguments)], more...)
	return e.input.startAuth(ctx, &a)
}

// OnHost calls a function in the network of the control plane.
func (e *Env) OnHost(call func()) { e.input.host(call) }
