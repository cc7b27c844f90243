package file

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// K-02: the output folder and the log have no value of a Secret, whether the Secret is valid, invalid, or without
// ReferenceGrant. The state folder is left out: only its owner can read it.
func TestTheOutputFolderShowsNoSecret(t *testing.T) {
	const marker = "mark7q"
	input, output := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for name, text := range map[string]string{
		"class.yaml": classYAML,
		"gateway.yaml": gatewayYAML + `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: window, namespace: guests}
spec:
  gatewayClassName: turn
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}
  listeners:
    - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: broken}, {name: turn-auth, namespace: calls}]}}
    - {name: udp, port: 3478, protocol: TURN-UDP}
`,
		"config.yaml": `apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: turn, namespace: calls}
spec: {realm: calls.example.net, authRef: {name: turn-auth}}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: own, namespace: guests}
spec: {userName: {name: turn-auth, namespace: calls, key: secret}, password: {name: broken, key: tls.key}}
---
apiVersion: v1
kind: Secret
metadata: {name: turn-auth, namespace: calls}
stringData: {type: static, username: ` + marker + `-name, password: ` + marker + `-word, secret: ` + marker + `-key}
---
apiVersion: v1
kind: Secret
metadata: {name: broken, namespace: guests}
stringData: {type: ` + marker + `, tls.crt: "-----BEGIN ` + marker + `-----\n", tls.key: ` + marker + `}
`,
		"odd-data.yaml":  "apiVersion: v1\nkind: Secret\nmetadata: {name: odd, namespace: calls}\ndata: {key: \"" + marker + " is no base64\"}\n",
		"odd-list.yaml":  "apiVersion: v1\nkind: Secret\nmetadata: {name: odd2, namespace: calls}\nstringData: {key: [" + marker + "]}\n",
		"odd-text.yaml":  "apiVersion: v1\nkind: Secret\nmetadata: {name: odd3, namespace: calls}\nstringData: " + marker + "\n",
		"odd-value.yaml": "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: odd4, namespace: calls}\nspec: {password: {value: " + marker + "}}\n",
	} {
		if err := os.WriteFile(filepath.Join(input, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	p := Provider{
		Input: input, Output: output, Addresses: []string{"192.0.2.10"}, Options: translate.DefaultOptions(),
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for range 2 { // the second run compares with the first
		if err := p.Run(t.Context()); err != nil && !errors.Is(err, ErrNotInForce) {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(input, "realm.yaml"), []byte("# "), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := 0
	err := filepath.WalkDir(output, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == "state" {
				return fs.SkipDir
			}
			return err
		}
		data, err := os.ReadFile(path)
		files++
		if strings.Contains(string(data), marker) {
			t.Errorf("%s:\n%s", path, data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), marker) {
		t.Errorf("the log:\n%s", &log)
	}
	if files < 5 {
		t.Errorf("%d files were written: this test shows nothing", files)
	}
}
