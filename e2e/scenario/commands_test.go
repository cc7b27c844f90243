package scenario

import "github.com/rogpeppe/go-internal/testscript"

// command is a command of a scenario. It fails the scenario by returning an error.
type command struct {
	run         func(s *stage, ts *testscript.TestScript, args []string) error
	usage       string
	least, most int // number of arguments
}

// condition is a command that waits for something to be so, or with ! before it for it to be so no longer.
type condition struct {
	run   func(s *stage, ts *testscript.TestScript, neg bool, args []string) error
	usage string
	args  int
}

const many = 64

// orders returns the commands that do something. Whatever must come of it is awaited.
func orders() map[string]command {
	return map[string]command{
		// Programs.
		"up":      {up, "[PART…]", 0, 3},               // start echo, operator, auth; without PART all of them
		"free":    {free, "", 0, 0},                    // dataplanes of the operator that is started next outlive it
		"respawn": {respawn, "NAME", 1, 1},             // kill the Gateway's dataplane, start it again as NAME, as a supervisor would: $PID
		"run":     {run, "NAME PROGRAM ARG…", 2, many}, // start one more program
		"crash":   {crash, "NAME", 1, 1},               // SIGKILL
		"drain":   {drain, "NAME", 1, 1},               // SIGTERM, without waiting for the end
		"gone":    {gone, "NAME", 1, 1},                // it has ended by itself, with exit code 0
		"quit":    {quit, "NAME", 1, 1},                // drain, and gone
		"says":    {says, "NAME REGEXP", 2, 2},         // the output of a program matches
		"babble":  {babble, "NAME GOOD", 2, 2},         // config discovery that says nonsense, what is in GOOD, and nonsense again: its URL is $NAME

		// Files. Ports of the quickstart become those of the scenario.
		"put":         {put, "FILE…", 1, many},      // copy files into the operator's folder
		"edit":        {edit, "FILE OLD NEW", 3, 3}, // replace a regular expression in a file of the operator's folder
		"expand":      {expand, "FILE", 1, 1},       // fill in the variables of the scenario
		"large":       {large, "FILE BYTES", 2, 2},  // write a JSON object of that size
		"certificate": {certificate, "", 0, 0},      // make a certificate that calls trust: $CERTIFICATE and $KEY, in base64 of PEM

		// Answers.
		"metric":     {metric, "NAME OP VALUE [URL]", 3, 4},       // a metric of the Gateway's dataplane, or at URL, compares: == or >=
		"settled":    {settled, "", 0, 0},                         // dataplane and auth service have the config that the operator serves
		"open":       {open, "URL STATUS", 2, 2},                  // a GET is answered with STATUS
		"http":       {request, "METHOD URL STATUS [FILE]", 3, 4}, // one request is answered with STATUS: FILE is its JSON, $BEARER its token, the answer goes to stdout
		"token":      {token, "NAME SECRET CLAIMS", 3, 3},         // sign CLAIMS with the secret in the file SECRET, good for an hour: $NAME
		"credential": {credential, "NAME [GATEWAY]", 1, 2},        // ask the auth service for a credential: $NAME_USER and $NAME_PASSWORD

		"call": {dispatch, "NAME VERB ARG…", 2, many}, // see verbs
	}
}

// conditions returns the commands that only look, for as long as it takes.
func conditions() map[string]condition {
	return map[string]condition{
		"file": {file, "PATH REGEXP", 2}, // the file, or one below the folder, matches
		"runs": {runs, "REGEXP", 1},      // the status of the Gateway's dataplane matches
	}
}

// commands are what a scenario can say beside the commands of testscript itself.
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
