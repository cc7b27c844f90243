package command

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAuth(t *testing.T) {
	w := newProvider(t)
	w.answers["GET /ice"] = `{"iceServers":[{"urls":["turn:192.0.2.7:3478"],"username":"1:ada","credential":"hunter2"}],"iceTransportPolicy":"all"}`
	w.answers["GET /"] = `{"username":"1:ada","password":"hunter2","ttl":3600,"uris":["turn:192.0.2.7:3478"]}`
	address := strings.TrimPrefix(w.url, "http://")
	for _, c := range []struct {
		args          []string
		sent          string
		want          string
		secretInSight bool
	}{
		{[]string{"media/frankfurt", "-u", "ada"}, "GET /ice?gateway=frankfurt&namespace=media&service=turn&username=ada", "<redacted>", false},
		{[]string{"media/frankfurt", "--show-secrets", "--ttl", "10m"}, "GET /ice?gateway=frankfurt&namespace=media&service=turn&ttl=600", "hunter2", true},
		{[]string{"frankfurt", "-n", "media", "--auth-turn-credential"}, "GET /?gateway=frankfurt&namespace=media&service=turn", "<redacted>", false},
		{[]string{"-A", "-o", "jsonpath={.iceServers[0].urls[0]}"}, "GET /ice?service=turn", "turn:192.0.2.7:3478\n", false},
	} {
		w.requests = nil
		out, errs, code := execute(t, "", append([]string{"auth", "--auth-server-address", address}, c.args...)...)
		if code != 0 || !strings.Contains(out, c.want) || strings.Contains(out+errs, "hunter2") != c.secretInSight {
			t.Error(c.args, out, errs, code)
		}
		if !slices.Equal(w.requests, []string{c.sent}) {
			t.Error(c.args, w.requests)
		}
	}
	w.answers["GET /ice"] = `401 {"detail":"This service needs a valid bearer token."}`
	if _, errs, code := execute(t, "", "auth", "--auth-server-address", address, "-n", "x"); code != exitFailed ||
		!strings.Contains(errs, "needs a valid bearer token") || !strings.Contains(errs, "--auth-token-file") {
		t.Error(errs, code)
	}
	for _, ttl := range []string{"500ms", "-5m"} {
		w.requests = nil
		_, errs, code := execute(t, "", "auth", "media/frankfurt", "--auth-server-address", address, "--ttl", ttl)
		if code != exitUsage || !strings.Contains(errs, "--ttl "+ttl[:2]) || len(w.requests) > 0 {
			t.Error(ttl, errs, code, w.requests)
		}
	}
	if _, errs, code := w.run(t, "auth", "media/frankfurt"); code != exitUsage ||
		!strings.Contains(errs, "--auth-server-address") {
		t.Error(errs, code)
	}
}

// releasePods are the pods of a release whose auth service crashes, or else is ready.
func releasePods(namespace, name string, crashes bool) []string {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: %[1]s-1, namespace: %[2]s, labels: {app: %[1]s%[3]s}},
	  spec: {containers: []}, status: {%[4]s}}`
	const ready = `conditions: [{type: Ready, status: "True"}]`
	auth := ready
	if crashes {
		auth = `containerStatuses: [{name: auth, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}}]`
	}
	return []string{
		fmt.Sprintf(pod, name+"-operator", namespace, `, stunner.l7mp.io/config-discovery-service: enabled`, ready),
		fmt.Sprintf(pod, name+"-auth", namespace, "", auth),
		`{apiVersion: v1, kind: Pod, metadata: {name: shop, namespace: ` + namespace + `, labels: {app: shop-auth}}, spec: {containers: []}}`,
	}
}

// Namespace and names of a release are values of the chart. Commands find the auth service of each release, and doctor
// its faults.
func TestAuthService_IsFoundInEachRelease(t *testing.T) {
	for _, tc := range []struct {
		name, namespace, prefix string
		flags                   []string
	}{
		{"as documented", "stunner-system", "stunner", nil},
		{"in another namespace", "calls", "stunner", nil},
		{"in a namespace of a flag", "calls", "stunner", []string{"--operator-namespace", "calls"}},
		{"with fullnameOverride", "stunner-system", "edge", nil},
		{"with nameOverride in another namespace", "calls", "mine-turn", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := append(fakeCluster(t, "", releasePods(tc.namespace, tc.prefix, false)...), tc.flags...)
			_, errs, _ := execute(t, "", append(flags, "auth", "media/frankfurt")...) // the fake cluster forwards no ports
			if want := "forward a port to pod " + tc.prefix + "-auth-1:"; !strings.Contains(errs, want) {
				t.Errorf("auth: no %q in %s", want, errs)
			}
			flags = append(fakeCluster(t, "", releasePods(tc.namespace, tc.prefix, true)...), tc.flags...)
			out, _, _ := execute(t, "", append(flags, "doctor", "-A")...)
			if want := "Pod " + tc.namespace + "/" + tc.prefix + "-auth-1"; !strings.Contains(out, want) {
				t.Errorf("doctor: no %q in %s", want, out)
			}
			if strings.Contains(out, "no pod of the operator is ready") {
				t.Errorf("doctor: the operator is ready: %s", out)
			}
		})
	}
}

// With operators in several namespaces, none of them stunner-system, a flag must select the auth service.
func TestAuthService_OfSeveralOperators(t *testing.T) {
	flags := fakeCluster(t, "", append(releasePods("calls", "stunner", false), releasePods("edge", "stunner", false)...)...)
	_, errs, code := execute(t, "", append(flags, "auth", "media/frankfurt")...)
	if code != exitFailed || !strings.Contains(errs, "namespaces calls and edge: choose one with --operator-namespace, or use --auth-service-namespace") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	_, errs, _ = execute(t, "", append(flags, "auth", "media/frankfurt", "--auth-service-namespace", "edge")...)
	if !strings.Contains(errs, "forward a port to pod stunner-auth-1:") {
		t.Error(errs)
	}
}

// doctor checks each auth service whose account the operator lists in --discovery-readers, in any namespace. Other pods
// that are named like an auth service, and other programs with such an account, are not checked. The numbers of restarts
// differ, because findings with the same text are shown as one.
func TestDoctor_ChecksEachAuthServiceOfTheInstallation(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: {name: %[1]s-1, namespace: %[2]s, uid: %[2]s-%[1]s, labels: {app: %[1]s}},
	  spec: {serviceAccountName: %[3]s, containers: []},
	  status: {containerStatuses: [{name: auth, restartCount: %[4]d, state: {waiting: {reason: CrashLoopBackOff}}}]}}`
	documents := append(releasePods("calls", "stunner", false),
		fmt.Sprintf(pod, "partners-auth", "calls", "partners", 4), fmt.Sprintf(pod, "web-auth", "web", "tokens", 5),
		fmt.Sprintf(pod, "usage", "web", "tokens", 6), fmt.Sprintf(pod, "shop-auth", "web", "default", 7),
		fmt.Sprintf(pod, "shop-auth", "calls", "default", 8))
	documents[0] = strings.Replace(documents[0], "containers: []", `containers: [{name: manager,
		args: ["--discovery-readers=$(POD_NAMESPACE)/stunner-auth,$(POD_NAMESPACE)/partners,web/tokens:whole"]}]`, 1)
	out, errs, _ := execute(t, "", append(fakeCluster(t, "", documents...), "doctor", "-A", "-o", "json")...)
	for name, want := range map[string]bool{
		"calls/partners-auth-1": true, "web/web-auth-1": true, "web/usage-1": false, "web/shop-auth-1": false, "calls/shop-auth-1": false,
	} {
		if strings.Contains(out, `"Pod `+name+`"`) != want {
			t.Errorf("a finding of %s: %v: %s%s", name, !want, out, errs)
		}
	}
}

// A tenant that labels its pods as those of a release gets no request for a credential, and doctor has no findings of
// its pods.
func TestAuthService_OfATenant(t *testing.T) {
	flags := fakeCluster(t, "", releasePods("tenant", "stunner", true)...)
	for _, line := range []string{"auth media/frankfurt", "doctor -A"} {
		out, errs, _ := execute(t, "", append(slices.Clone(flags), strings.Fields(line)...)...)
		text := strings.Join(strings.Fields(out+errs), " ")
		if !strings.Contains(text, "pods in tenant have the label") || !strings.Contains(text, "--operator-namespace") ||
			strings.Contains(text, "tenant/stunner") || strings.Contains(text, "forward a port") ||
			strings.Contains(text, "no pod of the operator is ready") {
			t.Errorf("%s: %s", line, text)
		}
	}
	out, errs, _ := execute(t, "", append(fakeCluster(t, "", append(releasePods("calls", "stunner", false),
		releasePods("tenant", "stunner", false)...)...), "auth", "media/frankfurt")...)
	if !strings.Contains(errs, "forward a port to pod stunner-auth-1:") {
		t.Error(out, errs)
	}
}

// A token is not sent in clear text to another host.
func TestAuthTokenNeedsTLS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("marker"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"auth.example.org", "192.0.2.1:8088", "http://auth.example.org"} {
		_, errs, code := execute(t, "", "auth", "media/frankfurt", "--auth-server-address", address, "--auth-token-file", file)
		if code != exitUsage || !strings.Contains(errs, "verified TLS only") {
			t.Errorf("%s: exit code %d: %s", address, code, errs)
		}
	}
	w := newProvider(t)
	w.answers["GET /ice"] = `{"iceServers":[]}`
	out, errs, code := w.run(t, "auth", "media/frankfurt", "--auth-server-address", w.url, "--auth-token-file", file)
	if code != 0 || !strings.Contains(out, "iceServers") {
		t.Error("loopback:", out, errs, code)
	}
}
