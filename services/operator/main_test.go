package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/file"
)

func environment(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

var needed = []string{"--input", "in", "--output", "out"}

func TestOptionErrorsNameTheFlag(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--input is missing"},
		{[]string{"--input", "in"}, "--output is missing"},
		{[]string{"--provider=cloud"}, "use file or kubernetes"},
		{[]string{"--provider=kubernetes", "--namespace="}, "--namespace is missing"},
		{[]string{
			"--provider=kubernetes", "--discovery-readers=auth",
		}, `--discovery-readers "auth": use NAMESPACE/SERVICEACCOUNT or NAMESPACE/SERVICEACCOUNT:whole`},
		{[]string{
			"--provider=kubernetes", "--discovery-readers=a/b:all",
		}, `--discovery-readers "a/b:all": use NAMESPACE/SERVICEACCOUNT or NAMESPACE/SERVICEACCOUNT:whole`},
		{[]string{
			"--provider=kubernetes", "--discovery-readers=a/b,Media/b",
		}, `--discovery-readers "Media/b": namespace "Media": a lowercase RFC 1123 label must`},
		{[]string{
			"--provider=kubernetes", "--discovery-readers=a/under_score:whole",
		}, `--discovery-readers "a/under_score:whole": ServiceAccount "under_score": a lowercase RFC 1123 subdomain must`},
		{[]string{"--provider=kubernetes", "--watch-namespaces=media,No"}, `--watch-namespaces "No": `},
		{[]string{
			"--provider=kubernetes", "--credentials=stunner-system/turn",
		}, `--credentials "stunner-system/turn": `},
		{[]string{"--nonsense"}, "nonsense"},
		{append([]string{"serve"}, needed...), `unexpected argument "serve"`},
		{[]string{"--input", "x/", "--output", "./x"}, "--output ./x: is the input folder as well"},
		{append(needed[:4:4], "--address", "localhost"), "--address \"localhost\": use an IP address"},
		{append(needed[:4:4], "--address", "0.0.0.0"), "--address \"0.0.0.0\""},
		{append(needed[:4:4], "--discovery-address", "13478"), "--discovery-address \"13478\": use HOST:PORT"},
		{append(needed[:4:4], "--health-address", "x"), "--health-address"},
		{append(needed[:4:4], "--discovery-auth", "maybe"), "use token or off"},
		{append(needed[:4:4], "--discovery-auth", "strict"), "use token or off"},
		{[]string{"--provider=kubernetes", "--discovery-auth=token"}, "use strict, pod-address, permissive or off"},
		{[]string{
			"--provider=kubernetes", "--discovery-url=http://discovery:13478",
		}, "nobody is answered there: use https"},
		{[]string{"--provider=kubernetes", "--discovery-url=discovery:13478"}, "use https://HOST:PORT"},
		{[]string{
			"--provider=kubernetes", "--scaler-address=13480",
		}, "--scaler-address \"13480\": use HOST:PORT, or nothing"},
		{[]string{"--provider=kubernetes", "--scaler-url=operator"}, "--scaler-url \"operator\": use HOST:PORT"},
		{[]string{"--provider=kubernetes", "--scaler-url=:13480"}, "--scaler-url \":13480\": use HOST:PORT"},
		{append(needed[:4:4], "--child-lifetime", "long"), "use free or bound"},
		{append(needed[:4:4], "--log-format", "xml"), "use text or json"},
		{append(needed[:4:4], "--log", "all:LOUD"), "--log: parse log levels"},
		{append(needed[:4:4], "--stop-grace", "0s"), "--stop-grace 0s"},
		{append(needed[:4:4], "--controller-name", ""), "--controller-name is missing"},
	} {
		if _, err := parse(c.args, environment(nil), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want one with %q", c.args, err, c.want)
		}
	}
}

func TestAllErrorsOfACommandLineAreReported(t *testing.T) {
	env := environment(map[string]string{"STUNNER_OPERATOR_STOP_GRACE": "soon"})
	_, err := parse([]string{"--log-format=xml", "--address=localhost", "--output=x"}, env, io.Discard)
	for _, want := range []string{"--input is missing", "--log-format", "--address", "STUNNER_OPERATOR_STOP_GRACE"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}

func TestOptionsComeFromTheEnvironmentToo(t *testing.T) {
	env := environment(map[string]string{"STUNNER_OPERATOR_INPUT": "in", "STUNNER_OPERATOR_OUTPUT": "out",
		"STUNNER_OPERATOR_STOP_GRACE": "3s", "STUNNER_OPERATOR_DISCOVERY_AUTH": "off", "STUNNER_OPERATOR_WATCH": "false"})
	o, err := parse([]string{"--stop-grace", "7s", "--child-lifetime=bound"}, env, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p := o.fileProvider()
	if p.Input != "in" || p.StopGrace != 7*time.Second || p.DiscoveryAuth != file.AuthOff || p.Watch || !p.Bound ||
		p.DiscoveryAddress != "127.0.0.1:13478" {
		t.Errorf("got %+v", p)
	}
	if p.Options.ControllerName != "stunner.l7mp.io/gateway-operator" || !p.Options.EndpointDiscovery {
		t.Errorf("got %+v", p.Options)
	}
	bad := environment(map[string]string{"STUNNER_OPERATOR_STOP_GRACE": "soon"})
	if _, err := parse(needed, bad, io.Discard); err == nil ||
		!strings.Contains(err.Error(), `STUNNER_OPERATOR_STOP_GRACE "soon"`) {
		t.Errorf("got error %v, want one that names the variable", err)
	}
}

// The shutdown is bounded, and the error names the tasks that have not ended.
func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		defer close(hang)
		time.AfterFunc(time.Hour, cancel)
		begun := time.Now()
		err := runUntil(
			ctx, shutdownTimeout, func(context.Context) error { <-hang; return nil }, func() string { return "writing" },
		)
		if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), "writing") ||
			took >= time.Hour+5*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
	failed := errors.New("failed")
	for name, run := range map[string]func(context.Context) error{
		"before": func(context.Context) error { return failed },
		"after":  func(ctx context.Context) error { <-ctx.Done(); return failed },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := runUntil(ctx, time.Minute, run, nil); !errors.Is(err, failed) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}

// K-01: in a cluster the default of config discovery is strict with TLS, and pods get its address.
func TestDiscoveryIsSecuredInACluster(t *testing.T) {
	for _, c := range []struct {
		args    []string
		auth    string
		url     string
		secured bool
	}{
		{needed, "token", "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478", false},
		{[]string{
			"--provider=kubernetes",
		}, "strict", "https://stunner-config-discovery.stunner-system.svc.cluster.local:13478", true},
		{[]string{
			"--provider=kubernetes", "--namespace=media", "--discovery-auth=permissive",
			"--cluster-domain=k8s.example.net",
		}, "permissive",
			"https://stunner-config-discovery.media.svc.k8s.example.net:13478", true},
		{[]string{
			"--provider=kubernetes", "--discovery-auth=off",
		}, "off", "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478", false},
		{[]string{
			"--provider=kubernetes", "--discovery-url=wss://d.example.net",
		}, "strict", "wss://d.example.net", true},
	} {
		o, err := parse(c.args, environment(nil), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.translation(); o.discoveryAuth != c.auth || got.DiscoveryAddress != c.url ||
			got.DiscoverySecured != c.secured {
			t.Errorf("%q: %s, %+v", c.args, o.discoveryAuth, got)
		}
	}
}

// By default KEDA gets the address of the operator's Service, whose name is in the certificate.
func TestKEDAFindsTheOperator(t *testing.T) {
	for want, args := range map[string][]string{
		"stunner-config-discovery.stunner-system.svc.cluster.local:13480": {"--provider=kubernetes"},
		"d.example.net:13480": {"--provider=kubernetes", "--discovery-url=wss://d.example.net"},
		"scaler.example.net:1": {
			"--provider=kubernetes", "--discovery-url=wss://d.example.net", "--scaler-url=scaler.example.net:1",
		},
	} {
		o, err := parse(args, environment(nil), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.translation().ScalerAddress; got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}

// K-04: Kubernetes libraries do not log requests and responses.
func TestLibrariesDoNotLogRequests(t *testing.T) {
	levels, err := telemetry.ParseLevels("all:TRACE")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log := slog.New(noTrace{telemetry.NewLog(&out, "text", levels).Handler()}).With("a", 1).WithGroup("b")
	log.Log(t.Context(), telemetry.LevelTrace, "Response Body", "body", "marker")
	log.Log(t.Context(), slog.LevelDebug, "Listing and watching")
	if said := out.String(); strings.Contains(said, "marker") || !strings.Contains(said, "Listing") {
		t.Errorf("said %q", said)
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	var help strings.Builder
	if _, err := parse([]string{"--help"}, environment(nil), &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v", err)
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	new(options).flags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(help.String(), "-"+f.Name) || f.Usage == "" {
			t.Errorf("flag %s is not explained", f.Name)
		}
	})
}

func TestVersionNeedsNothingElse(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if o, err := parse(args, environment(nil), io.Discard); err != nil || !o.version {
			t.Errorf("%q: %v, %v", args, o.version, err)
		}
	}
}

// The soft memory limit is nine tenths of the limit of the cgroup. GOMEMLIMIT takes precedence, and without a limit
// none is set.
func TestTheMemoryLimitIsThatOfTheCgroup(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for _, c := range []struct {
		name       string
		cgroup     uint64
		err        error
		gomemlimit string
		limit      int64
		memory     int64
	}{
		{"512 MiB", 512 << 20, nil, "", (512 << 20) / 100 * 90, 512 << 20},
		{"none", 0, errors.New("no cgroup"), "", math.MaxInt64, 0},
		{"unlimited", math.MaxUint64, nil, "", math.MaxInt64, 0},
		{"unlimited in version 1", 0x7FFFFFFFFFFFF000, nil, "", math.MaxInt64, 0},
		{"set by people", 512 << 20, nil, "off", math.MaxInt64, 0},
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		memory := limitMemory(
			func() (uint64, error) { return c.cgroup, c.err },
			environment(map[string]string{"GOMEMLIMIT": c.gomemlimit}), slog.New(slog.DiscardHandler),
		)
		if limit := debug.SetMemoryLimit(-1); limit != c.limit || memory != c.memory {
			t.Errorf("%s: limit %d, memory %d; want %d and %d", c.name, limit, memory, c.limit, c.memory)
		}
	}
}
