package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// K-02: a former secret is encoded, compared and validated, and never shown.
func TestFormerSecret(t *testing.T) {
	const head = `{"version":"v1","auth":{"type":"ephemeral","credentials":{"secret":"now"}`
	without, with := parse(t, head+`}}`), parse(t, head+`,"former":{"secret":"hunter2","until":1900000000}}}`)
	if err := with.Validate(); err != nil {
		t.Fatal(err)
	}
	if again := parse(t, string(with.Canonical())); again.Revision() != with.Revision() ||
		with.Revision() == without.Revision() {
		t.Error("the former secret gets lost on the way, or makes no difference")
	}
	for _, change := range config.Diff(without, with) {
		if strings.Contains(change.String(), "hunter") {
			t.Errorf("shown: %s", change)
		}
	}
	if n := len(config.Diff(without, with)); n != 2 {
		t.Errorf("%d changes, want secret and time", n)
	}
	former, until := with.Auth.FormerAuthority()
	if former != (credential.Authority{Realm: with.Auth.Realm, SharedSecret: "hunter2"}) ||
		!until.Equal(time.Unix(1900000000, 0)) {
		t.Errorf("authority %+v until %s", former, until)
	}
	for text, field := range map[string]string{
		`{"secret":"","until":1}`:   "auth.former.secret",
		`{"secret":"x","until":0}`:  "auth.former.until",
		`{"secret":"x","until":-1}`: "auth.former.until",
	} {
		if err := parse(t, head+`,"former":`+text+`}}`).Validate(); err == nil ||
			!strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Except is a set of addresses without prefixes.
func TestExcept(t *testing.T) {
	const head = `{"version":"v1","auth":{"credentials":{"username":"u","password":"p"}},"clusters":[{"name":"a/b","type":"STATIC","endpoints":["10.0.0.0/8"]`
	one, two := parse(t, head+`,"except":["10.0.0.2","10.0.0.1"]}]}`), parse(
		t, head+`,"except":["10.0.0.1","10.0.0.2","10.0.0.1"]}]}`,
	)
	if one.Revision() != two.Revision() || one.Revision() == parse(t, head+`}]}`).Revision() {
		t.Error("the order makes a difference, or the addresses make none")
	}
	for _, wrong := range []string{"10.0.0.0/8", "10.0.0.1:<1-2>", "fe80::1%eth0", "host"} {
		if err := parse(t, head+`,"except":["`+wrong+`"]}]}`).Validate(); err == nil ||
			!strings.Contains(err.Error(), "clusters[0].except[0]") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
