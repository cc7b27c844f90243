package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/deptest"
)

// waits are the methods of a UDP socket that wait when its send buffer is full.
var waits = []string{".WriteTo", ".WriteToUDP", ".WriteToUDPAddrPort", ".WriteMsgUDP", ".WriteMsgUDPAddrPort"}

// files are the functions that read files and the environment. Package relay imports os for the runtime's poller.
var files = []string{"os.Open", "os.OpenFile", "os.ReadFile", "os.ReadDir", "os.Stat", "os.Getenv", "os.LookupEnv"}

const internal = "github.com/stunner-gateway/stunner/services/stunnerd/internal/"

// deciding are the packages that admit clients and peers, and the packages whose data they use for that.
var deciding = []string{
	internal + "cluster", internal + "resolve", internal + "datagram", internal + "session", internal + "meter",
	internal + "limit", internal + "nonce", internal + "stunmsg", internal + "relay", internal + "engine/...",
	internal + "gate", internal + "listener", internal + "server", internal + "follower", internal + "admin",
	"github.com/stunner-gateway/stunner/services/api/...",
}

func TestDependencies(t *testing.T) {
	deptest.Check(t, []deptest.Rule{
		{
			Package: "github.com/stunner-gateway/stunner/services/stunnerd",
			Forbidden: []string{
				"k8s.io/api/...", "k8s.io/client-go/...", "k8s.io/apimachinery/...", "sigs.k8s.io/gateway-api/...",
				"sigs.k8s.io/controller-runtime/...",
			},
			Why: "the dataplane runs without Kubernetes: its config contains all that it needs",
		},
		{
			Package:   internal + "cluster",
			Forbidden: []string{"os", "net/http", "github.com/pion/...", internal + "meter", internal + "session"},
			Calls:     []string{"time.Now", "time.Since"},
			Why:       "what a route allows is a question of values; the answer must not depend on when or where it is asked",
		},
		{
			Package:   internal + "resolve",
			Forbidden: []string{"net/http", "github.com/pion/...", "github.com/stunner-gateway/..."},
			Why:       "this package only resolves names; package cluster decides which addresses are reachable",
		},
		{
			Package:   internal + "datagram",
			Forbidden: []string{"net/http", "github.com/pion/...", "github.com/stunner-gateway/..."},
			Why:       "sending a datagram is a matter of the kernel, and the same for clients and peers",
		},
		{
			Package: internal + "forward",
			Forbidden: []string{
				"net/http", "github.com/pion/...", internal + "session", internal + "relay", internal + "gate",
				internal + "listener", internal + "server", internal + "follower",
			},
			Why: "a frame names a client and a port; what a session is, and who may change it, is decided by its owner",
		},
		{
			Package:   internal + "offload",
			Forbidden: append([]string{"net/http", "github.com/pion/..."}, deciding...),
			Why:       "the kernel repeats decisions of user space: this package must not see what they depend on",
		},
		{
			Package:   internal + "host",
			Forbidden: append([]string{"net/http", "github.com/pion/..."}, deciding...),
			Why:       "this package only reads the addresses of the host; other packages decide about peers and relays",
		},
		{
			Package: internal + "session",
			Forbidden: []string{
				"net/http", "github.com/pion/...", internal + "relay", internal + "gate", internal + "listener",
				internal + "server",
			},
			Why: "who is connected is known below everything that moves packets",
		},
		{
			Package: internal + "usage",
			Forbidden: []string{
				"net/http", "github.com/pion/...", "go.opentelemetry.io/...", internal + "session", internal + "journal",
				internal + "relay", internal + "gate", internal + "server", internal + "usagelog",
			},
			Why: "accounts are counted below everything that moves packets, and do not depend on where records go",
		},
		{
			Package: internal + "journal",
			Forbidden: []string{
				"net/http", "github.com/pion/...", internal + "relay", internal + "engine/...", internal + "gate",
				internal + "listener", internal + "server", internal + "follower", internal + "admin",
			},
			Why: "the journal stores sessions as values; other packages decide what they mean",
		},
		{
			Package: internal + "relay",
			Forbidden: []string{
				"net/http", "github.com/pion/turn/...", internal + "engine", internal + "gate", internal + "listener",
				internal + "server",
			},
			Calls: waits,
			Why:   "the path of data in channels must not depend on the allocation engine",
		},
		{
			Package: internal + "engine",
			Forbidden: []string{
				"net/http", "github.com/pion/turn/...", internal + "gate", internal + "listener", internal + "server",
			},
			Why: "the interface of an allocation engine must not depend on an implementation",
		},
		{
			Package: internal + "engine/pionturn",
			Forbidden: []string{
				"net/http", internal + "gate", internal + "limit", internal + "nonce", internal + "listener",
				internal + "server",
			},
			Calls: waits,
			Why:   "an allocation engine gets admitted requests: it must not admit requests or open sockets",
		},
		{
			Package: internal + "gate",
			Forbidden: []string{
				"net/http", "github.com/pion/turn/...", internal + "listener", internal + "server",
				internal + "follower", internal + "admin",
			},
			Calls: slices.Concat(waits, files),
			Why:   "admission must not depend on sockets, on the source of its policy or on the implementation of the allocation engine",
		},
		{
			Package: internal + "listener",
			Forbidden: []string{
				"net/http", "github.com/pion/turn/...", internal + "server", internal + "follower", internal + "admin",
			},
			Calls: waits,
			Why:   "a transport knows the gate behind it and nothing of configs",
		},
		{
			Package:   internal + "server",
			Forbidden: []string{"net/http", internal + "follower", internal + "admin"},
			Calls:     files,
			Why:       "the server applies configs as values, independent of their source and of the admin endpoints",
		},
		{
			Package: internal + "admin",
			Forbidden: []string{
				"github.com/pion/...", internal + "server", internal + "listener", internal + "gate", internal + "relay",
			},
			Why: "status, sessions and the judgement of peers are functions that package main passes",
		},
	})
}

// A second engine replaces one package only if no other package imports pion/turn. Tests use its client.
func TestOnlyTheEngineImportsPionTurn(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{.Imports}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		imports := strings.Contains(line, "github.com/pion/turn/")
		if engine := strings.HasPrefix(line, internal+"engine/pionturn:"); imports != engine {
			t.Errorf("%simports pion/turn: %t, want %t", line, imports, engine)
		}
	}
}
