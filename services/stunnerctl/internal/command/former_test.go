package command

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// Every documented form of the existing command line works, or the error names its replacement.
func TestFormerCommandLines(t *testing.T) {
	w := newStatusProvider(t)
	w.answers["GET /ice"] = `{"iceServers":[]}`
	w.answers["GET /"] = `{"uris":[]}`
	address := strings.TrimPrefix(w.url, "http://")
	for line, want := range map[string]struct {
		code int
		text string // of output or errors
	}{
		"config":                               {0, "Gateway:"},
		"config -a":                            {0, "shop/turn"},
		"config --all-namespaces":              {0, "shop/turn"},
		"config -n media frankfurt":            {0, "media/frankfurt"},
		"config -n media frankfurt -o summary": {0, "Authentication:"},
		"config -n media frankfurt -o json":    {0, `"public_port": 3478`},
		"config -n media frankfurt -o yaml":    {0, "public_port: 3478"},
		"config -n media frankfurt -o jsonpath={.listeners[0].public_port}":            {0, "3478"},
		"config -n media frankfurt -v":                                                 {0, "media/frankfurt"},
		"config -n media frankfurt -l all:DEBUG":                                       {0, "media/frankfurt"},
		"config -n media frankfurt --loglevel all:INFO":                                {0, "media/frankfurt"},
		"config -n media frankfurt --node worker-1":                                    {exitUsage, "config dump --running"},
		"config --cds-server-namespace ops":                                            {0, "Gateway:"},
		"config --cds-server-address 10.0.0.1":                                         {exitUsage, "--operator URL"},
		"config --cds-server-port 13478":                                               {exitUsage, "--operator URL"},
		"status":                                                                       {exitFailed, "POD"}, // a pod gives no answer
		"status -n media berlin":                                                       {0, "media/berlin"},
		"status -n media frankfurt --pod-name frankfurt-1":                             {exitFailed, "frankfurt-1"},
		"status -n media frankfurt --pod-address 10.0.0.1":                             {exitUsage, "leave them out"},
		"status -n media frankfurt --pod-port 8086":                                    {exitUsage, "curl http://ADDRESS:8086/status"},
		"status -a -o json":                                                            {exitFailed, `"gateway": "shop/turn"`},
		"auth -n media frankfurt --auth-server-address ADDRESS":                        {0, "iceServers"},
		"auth -n media frankfurt -u ada --auth-server-address ADDRESS":                 {0, "iceServers"},
		"auth -n media frankfurt --auth-turn-credential --auth-server-address ADDRESS": {0, "uris"},
		"auth -n media frankfurt --auth-server-address ADDRESS --auth-service-port 1":  {0, "iceServers"},
		"auth -n media frankfurt --auth-service-namespace x":                           {exitUsage, "--auth-server-address HOST:PORT"},
		"license":         {0, "Every feature is on"},
		"icetest":         {exitUsage, "tests an existing Gateway and creates none"},
		"icetest udp tcp": {exitUsage, "stunnerctl icetest GATEWAY"},
		"icetest -n media frankfurt --offload-mode tc":                                           {exitUsage, "set the mode in its Dataplane"},
		"icetest -n media nowhere -r 100 -t 1m":                                                  {exitFailed, "no such Gateway"},
		"icetest -n media nowhere --packet-rate 100 --timeout 1m":                                {exitFailed, "no such Gateway"},
		"icetest -n media nowhere --ice-tester-image example.org/x":                              {exitFailed, "no such Gateway"},
		"icetest -n media nowhere --allow-nodeport":                                              {exitFailed, "no such Gateway"},
		"icetest -n media --force-cleanup":                                                       {exitUsage, "a cluster"},
		"turncat - turn://a:b@127.0.0.1:1?transport=tcp udp://127.0.0.1:1":                       {exitFailed, "refuses the connection"},
		"turncat -v --log=all:INFO - turn://a:b@127.0.0.1:1?transport=tcp udp://127.0.0.1:1":     {exitFailed, "refuses the connection"},
		"turncat -i --sni example.org - turn://a:b@127.0.0.1:1?transport=tls udp://127.0.0.1:1":  {exitFailed, "refuses the connection"},
		"turncat --insecure file://stdin turn://a:b@127.0.0.1:1?transport=tls udp://127.0.0.1:1": {exitFailed, "refuses the connection"},
		"turncat - k8s://media/nowhere:udp udp://127.0.0.1:1":                                    {exitFailed, "no such Gateway"},
		"turncat - k8s:///nowhere:udp udp://127.0.0.1:1 -n media --cds-server-namespace ops":     {exitFailed, "no such Gateway"},
		"turncat - k8s://media/nowhere:udp udp://127.0.0.1:1 --cds-server-address 10.0.0.1":      {exitUsage, "--operator URL"},
		"turncat udp://127.0.0.1:0 turn://a:b@127.0.0.1:1 tcp://127.0.0.1:1":                     {exitUsage, "udp://"},
	} {
		args := strings.Fields(strings.ReplaceAll(line, "ADDRESS ", address+" "))
		if args[len(args)-1] == "ADDRESS" {
			args[len(args)-1] = address
		}
		out, errs, code := w.run(t, args...)
		if code != want.code || !strings.Contains(out+errs, want.text) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", line, code, want.code, want.text, out, errs)
		}
		if strings.Contains(line, "--pod-address") && !strings.Contains(errs, "--pod-address") {
			t.Errorf("%s: the error does not name the flag: %s", line, errs)
		}
	}
	// The flags of kubectl.
	for _, flags := range []string{
		"--kubeconfig /none", "--context x", "--cluster x", "--user x", "--server https://192.0.2.1", "-s https://192.0.2.1",
		"--token x", "--as x", "--as-group x", "--certificate-authority x", "--client-certificate x", "--client-key x",
		"--insecure-skip-tls-verify", "--tls-server-name x", "--request-timeout 1s", "--cache-dir x",
	} {
		if _, errs, code := w.run(t, append([]string{"config", "media/frankfurt"}, strings.Fields(flags)...)...); code != 0 {
			t.Errorf("%s: %s", flags, errs)
		}
	}
}

// config -w prints a config until Ctrl-C, and then ends without an error.
func TestFormerWatch(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	out := &eachWrite{do: func(string) { interrupt() }}
	var errs bytes.Buffer
	args := []string{"stunnerctl", "--folder", newProvider(t).folder, "config", "-n", "media", "frankfurt", "-w"}
	code := Run(ctx, args, Streams{In: strings.NewReader(""), Out: out, ErrOut: &errs})
	if code != 0 || !strings.Contains(out.String(), "media/frankfurt") || errs.Len() > 0 {
		t.Errorf("exit code %d\n%s%s", code, out, &errs)
	}
}
