package scenario

import "github.com/rogpeppe/go-internal/testscript"

// command is a command of a scenario script. An error fails the scenario.
type command struct {
	run         func(s *stage, ts *testscript.TestScript, args []string) error
	usage       string
	least, most int // number of arguments
}

// condition is a command that waits for a condition, or with ! before it for the opposite.
type condition struct {
	run   func(s *stage, ts *testscript.TestScript, neg bool, args []string) error
	usage string
	args  int
}

const many = 64

// orders returns the commands that carry out an action. They wait for its effect.
func orders() map[string]command {
	return map[string]command{
		// Programs.
		"up": {up, "[PART…]", 0, 3}, // start echo, operator, auth; without PART all of them
		// dataplanes of the next operator keep running after a crash of the operator
		"free": {free, "", 0, 0},
		// kill the Gateway's dataplane and start it again as NAME, as a supervisor would; sets $PID
		"respawn": {respawn, "NAME", 1, 1},
		"run":     {run, "NAME PROGRAM ARG…", 2, many}, // start another program
		"crash":   {crash, "NAME", 1, 1},               // SIGKILL
		"drain":   {drain, "NAME", 1, 1},               // SIGTERM, without waiting
		"gone":    {gone, "NAME", 1, 1},                // wait until it has exited with code 0
		"quit":    {quit, "NAME", 1, 1},                // drain, then gone
		"says":    {says, "NAME REGEXP", 2, 2},         // wait until the output of a program matches
		// discovery server that sends invalid frames, the file GOOD, and invalid frames again; its URL is $NAME
		"discovery": {serveDiscovery, "NAME GOOD", 2, 2},

		// Files. Ports of the quickstart are replaced by those of the scenario.
		"put":    {put, "FILE…", 1, many},      // copy files into the operator's folder
		"edit":   {edit, "FILE OLD NEW", 3, 3}, // replace a regular expression in a file of the operator's folder
		"expand": {expand, "FILE", 1, 1},       // expand variables of the scenario
		"large":  {large, "FILE BYTES", 2, 2},  // write a JSON object of that size
		// make a certificate that calls trust; sets $CERTIFICATE and $KEY to base64 of PEM
		"certificate": {certificate, "", 0, 0},

		// Responses.
		// a metric of the Gateway's dataplane, or at URL, compared with == or >=
		"metric": {metric, "NAME OP VALUE [URL]", 3, 4},
		// dataplane and auth service have the config that the operator serves
		"settled": {settled, "", 0, 0},
		"open":    {open, "URL STATUS", 2, 2}, // wait until a GET returns STATUS
		// one request must return STATUS; FILE is its JSON body, $BEARER its token or @FILE, stdout the response
		"http": {request, "METHOD URL STATUS [FILE]", 3, 4},
		// sign CLAIMS with the secret in the file SECRET, valid for an hour; sets $NAME
		"token": {token, "NAME SECRET CLAIMS", 3, 3},
		// request a credential from the auth service; sets $NAME_USER and $NAME_PASSWORD
		"credential": {credential, "NAME [GATEWAY]", 1, 2},

		"call": {dispatch, "NAME VERB ARG…", 2, many}, // see verbs
	}
}

// conditions returns the commands that wait for a condition.
func conditions() map[string]condition {
	return map[string]condition{
		"file": {file, "PATH REGEXP", 2}, // the file, or a file below the folder, matches
		"runs": {runs, "REGEXP", 1},      // the status of the Gateway's dataplane matches
	}
}

// commands returns all commands for scenarios, in addition to those of testscript.
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	all := make(map[string]func(*testscript.TestScript, bool, []string))
	for name, c := range orders() {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg || len(args) < c.least || len(args) > c.most {
				ts.Fatalf("usage: %s %s", name, c.usage)
			}
			ts.Check(c.run(ts.Value(stageKey{}).(*stage), ts, args))
		}
	}
	for name, c := range conditions() {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if len(args) != c.args {
				ts.Fatalf("usage: [!] %s %s", name, c.usage)
			}
			ts.Check(c.run(ts.Value(stageKey{}).(*stage), ts, neg, args))
		}
	}
	return all
}
