// Package compat tests that clients, command lines and files of an installation of the existing system work with the
// built programs. The answers of the existing system are recorded facts; no test runs it.
//
// # Files
//
//	authrows_test.go   requests to the auth service
//	dataplane_test.go  dataplanes
package compat
