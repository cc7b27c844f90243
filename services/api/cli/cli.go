// Package cli parses the command lines of the programs. A flag that is not given takes its value from an environment
// variable. All errors of a command line are reported at once, each with the flag and the remedy.
//
// The flags are those of package flag, because it accepts -name as well as --name, and existing command lines have
// both. pflag would read -name as four one-letter flags. It also has no environment variables, no joint errors and no
// settings of another program, which are most of this package.
//
// # Files
//
//	cli.go     flags, environment variables and errors
//	former.go  settings of the existing system that several programs accept
package cli

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Flags are the flags of a program.
type Flags struct {
	*flag.FlagSet
	// Short maps one-letter names to the long names of the same flags.
	Short map[string]string
	// Env returns the environment variable of a flag; "" if it has none.
	Env func(flag string) string
	// Former are the values of the given former flags, by name.
	Former map[string]string

	settings []Former
	taken    map[string]bool // variables that TakeFormer returned
}

// New returns an empty set of flags. Errors are returned, not printed.
func New(program string, env func(flag string) string) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(program, flag.ContinueOnError), Short: map[string]string{}, Env: env}
	f.SetOutput(io.Discard)
	return f
}

// EnvName returns the environment variable that is named after a flag: prefix, and the name of the flag in capitals
// with underscores.
func EnvName(prefix, flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Shorten defines one-letter names of flags.
func (f *Flags) Shorten(short map[string]string) {
	for letter, name := range short {
		long := f.Lookup(name)
		f.Var(long.Value, letter, long.Usage)
		f.Short[letter] = name
	}
}

// given returns the flags that are set, by long name.
func (f *Flags) given() map[string]bool {
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[cmp.Or(f.Short[fl.Name], fl.Name)] = true })
	return given
}

// SetFromEnv sets the flags that are not on the command line from their environment variables. It must be called after
// Parse.
func (f *Flags) SetFromEnv(getenv func(string) string) error {
	given := f.given()
	var errs Errors
	f.VisitAll(func(fl *flag.Flag) {
		name := f.Env(fl.Name)
		if f.Short[fl.Name] != "" || given[fl.Name] || name == "" {
			return
		}
		if value := getenv(name); value != "" {
			if err := f.Set(fl.Name, value); err != nil {
				errs.Addf("%s %q: %w", name, value, err)
			}
		}
	})
	return errs.Join()
}

// PrintHelp writes each flag with its short name, environment variable, meaning and default.
func (f *Flags) PrintHelp(w io.Writer) {
	letters := map[string]string{}
	for letter, name := range f.Short {
		letters[name] = "-" + letter + ", "
	}
	f.VisitAll(func(fl *flag.Flag) {
		if f.Short[fl.Name] != "" {
			return
		}
		argument, text := flag.UnquoteUsage(fl)
		head := strings.TrimSpace(Dashed(fl.Name) + " " + argument)
		if env := f.Env(fl.Name); env != "" {
			head += "  $" + env
		}
		if fl.DefValue != "" && fl.DefValue != "false" {
			text += " (default " + fl.DefValue + ")"
		}
		fmt.Fprintf(w, "\n  %s%s\n      %s\n", letters[fl.Name], head, strings.ReplaceAll(text, "\n", "\n      "))
	})
}

// Dashed returns the name of a flag as on a command line: -n or --name.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// List splits the value of a flag at commas and spaces.
func List(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

// Errors collects the errors of a command line.
type Errors []error

// Add adds an error; nil adds nothing.
func (e *Errors) Add(err error) {
	if err != nil {
		*e = append(*e, err)
	}
}

// Addf adds an error with a format as for fmt.Errorf.
func (e *Errors) Addf(format string, args ...any) { e.Add(fmt.Errorf(format, args...)) }

// AddOneOf adds an error if a flag has none of the allowed values.
func (e *Errors) AddOneOf(flag, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		e.Addf("%s %q: use %s", flag, value, strings.Join(allowed, " or "))
	}
}

// Join returns all errors as one; nil if there are none.
func (e Errors) Join() error { return errors.Join(e...) }
