package cli

import (
	"strings"
	"testing"
)

func TestFlagsAndEnvironment(t *testing.T) {
	env := map[string]string{"P_SIZE": "7", "P_NAME": "env", "P_COUNT": "many", "P_N": "alias", "P_OFF": "perhaps"}
	f := New("program", func(name string) string { return EnvName("P_", name) })
	size, name := f.Int("size", 1, "`BYTES` of it"), f.String("name", "", "name of it")
	f.Int("count", 2, "number of it\nand more")
	f.Bool("off", false, "turn it off")
	f.Shorten(map[string]string{"n": "name"})
	if err := f.Parse([]string{"-n", "given"}); err != nil {
		t.Fatal(err)
	}
	err := f.SetFromEnv(func(name string) string { return env[name] })
	if err == nil || !strings.Contains(err.Error(), `P_COUNT "many": `) ||
		!strings.Contains(err.Error(), `P_OFF "perhaps": `) {
		t.Errorf("error %v does not name both variables", err)
	}
	if *size != 7 || *name != "given" {
		t.Errorf("size %d and name %q, want the environment for what is not given", *size, *name)
	}
	var help strings.Builder
	f.PrintHelp(&help)
	for _, want := range []string{
		"\n  --count int  $P_COUNT\n      number of it\n      and more (default 2)\n",
		"\n  -n, --name string  $P_NAME\n      name of it\n",
		"\n  --off  $P_OFF\n      turn it off\n", "\n  --size BYTES  $P_SIZE\n      BYTES of it (default 1)\n",
	} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help %s does not contain %q", help.String(), want)
		}
	}
}

func TestErrorsAreReportedTogether(t *testing.T) {
	var errs Errors
	if errs.Add(nil); errs.Join() != nil {
		t.Errorf("no error is %v", errs.Join())
	}
	errs.Addf("--size %d: use 1 or more", 0)
	errs.AddOneOf("--format", "xml", "text", "json")
	errs.AddOneOf("--format", "text", "text", "json")
	if got, want := errs.Join().Error(), "--size 0: use 1 or more\n--format \"xml\": use text or json"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
