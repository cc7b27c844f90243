// Turnprobe checks a TURN server against the RFCs over the network, and prints a verdict for each requirement.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a check fails, or the server cannot be used at all
	exitUsage  = 2
)

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "turnprobe:", err)
		return exitUsage
	}
	results, err := probe.Run(o.target, o.checks)
	if err != nil {
		fmt.Fprintln(stderr, "turnprobe:", err)
		return exitFailed
	}
	if o.json {
		err = writeJSON(stdout, o.target, results)
	} else {
		err = writeTable(stdout, o.target, results)
	}
	if err != nil {
		fmt.Fprintln(stderr, "turnprobe:", err)
		return exitFailed
	}
	if probe.Count(results)[probe.Fail] > 0 {
		return exitFailed
	}
	return exitOK
}

// options are the parsed flags.
type options struct {
	target probe.Target
	checks []probe.Check
	json   bool
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("turnprobe", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: turnprobe -server ADDRESS:PORT -user USER -password PASSWORD [flags]")
		flags.PrintDefaults()
	}
	t := &o.target
	var transport, ports, only string
	server := netip.MustParseAddrPort("127.0.0.1:3478")
	flags.TextVar(&t.Server, "server", server, "`ADDRESS:PORT` of the server")
	flags.StringVar(&transport, "transport", "udp", "udp, tcp, tls or dtls")
	flags.StringVar(&t.User, "user", "", "user of a long-term credential")
	flags.StringVar(&t.Password, "password", "", "password of the user")
	flags.StringVar(
		&t.Secret, "secret", "",
		"shared secret of ephemeral credentials; alone, or with -user for the checks that need both",
	)
	flags.StringVar(&t.Realm, "realm", "", "realm that the server must send")
	flags.TextVar(
		&t.PeerAddr, "peer", netip.Addr{}, "local `ADDRESS` of peers (default: loopback, of the family of the relay address)",
	)
	flags.StringVar(
		&ports, "peer-ports", "",
		"`FIRST-LAST` port of peers, for a server whose routes name ports; relay ports should not be among them",
	)
	flags.TextVar(&t.Denied, "denied-peer", netip.Addr{}, "`ADDRESS` of a peer that the server must refuse")
	flags.IntVar(&t.Quota, "quota", 0, "maximum number of allocations per user")
	flags.BoolVar(&t.Long, "long", false, "also run the checks that take minutes")
	flags.DurationVar(
		&t.Silence, "silence", probe.DefaultSilence, "how long to wait before the absence of a response passes",
	)
	flags.DurationVar(&t.Answer, "answer", probe.DefaultAnswer, "timeout of a response")
	flags.StringVar(&only, "run", "", "run only the checks whose id matches the `REGEXP`")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("read command line: unexpected argument %q: use -server for the address", flags.Arg(0))
	}
	if t.FirstPeer, t.LastPeer, err = portRange(ports); err != nil {
		return o, err
	}
	t.Transport = probe.Transport(strings.ToLower(transport))
	pattern, err := regexp.Compile(only)
	if err != nil {
		return o, fmt.Errorf("read -run: %w", err)
	}
	o.checks = probe.Matching(pattern)
	return o, o.validate()
}

func (o options) validate() error {
	switch {
	case !o.target.Transport.Known():
		return fmt.Errorf("read -transport: %q is unknown: use udp, tcp, tls or dtls", o.target.Transport)
	case (o.target.User == "") != (o.target.Password == ""):
		return errors.New("read credential: -user and -password go together: give both")
	case o.target.User == "" && o.target.Secret == "":
		return errors.New("read credential: there is none: give -user and -password, or -secret, or all three")
	case len(o.checks) == 0:
		return errors.New("read -run: no check matches: leave it out to see the ids")
	}
	return nil
}

// portRange parses FIRST-LAST.
func portRange(value string) (first, last uint16, err error) {
	if value == "" {
		return 0, 0, nil
	}
	from, to, _ := strings.Cut(value, "-")
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	if errA != nil || errB != nil || a == 0 || b < a {
		return 0, 0, fmt.Errorf("read -peer-ports: %q is not a range: use FIRST-LAST, both from 1 to 65535", value)
	}
	return uint16(a), uint16(b), nil
}
