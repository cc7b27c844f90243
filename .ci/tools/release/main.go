// Command release writes the documents of a release that describe its files, and checks a folder with a release.
//
//	release bill -version V -o FILE PROGRAM...        the SPDX bill of materials of one program for several platforms
//	release notice -version V -o FILE PROGRAM...      the licence texts of all modules in programs
//	release provenance -version V -builder URI FOLDER the SLSA provenance of the files in a folder
//	release sums FOLDER                               SHA256SUMS, by which sha256sum checks the files of a folder
//	release check -version V FOLDER                   checks of everything that a release contains
//
// # Files
//
//	provenance.go  provenance and checksums
//	check.go       checks
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/spdx/tools-golang/json"

	"github.com/stunner-gateway/stunner/tools/bill"
)

// root is the folder of the repository, seen from that of the tools.
const root = "../.."

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("name a command: bill, notice, provenance, sums or check")
	}
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	version := flags.String("version", "", "version of the release, vMAJOR.MINOR.PATCH")
	out := flags.String("o", "", "file to write")
	builder := flags.String("builder", "", "URI of the workflow or host that builds the release")
	commit := flags.String("commit", "", "commit that the release is built from")
	invocation := flags.String("invocation", "", "URI of the run of the workflow")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return fmt.Errorf("%s: name a folder, or programs", args[0])
	}
	folder := flags.Arg(0)
	switch args[0] {
	case "bill":
		return writeBill(*out, *version, flags.Args())
	case "notice":
		return writeNotice(*out, *version, flags.Args())
	case "provenance":
		return writeProvenance(folder, source{*version, *commit, *builder, *invocation})
	case "sums":
		return writeSums(folder)
	case "check":
		return check(root, folder, *version)
	}
	return fmt.Errorf("command %q: use bill, notice, provenance, sums or check", args[0])
}

func open(files []string, version string) (all []bill.Program, err error) {
	for _, file := range files {
		p, err := bill.Open(file, version)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func writeBill(out, version string, files []string) error {
	programs, err := open(files, version)
	if err != nil {
		return err
	}
	d, err := bill.Document(root, programs, nil)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Write(d, &text, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return err
	}
	return os.WriteFile(out, text.Bytes(), 0o644)
}

func writeNotice(out, version string, files []string) error {
	programs, err := open(files, version)
	if err != nil {
		return err
	}
	modules := bill.Linked(programs...)
	licences, err := bill.Licences(root, modules)
	if err != nil {
		return err
	}
	text, err := bill.Notice(modules, licences)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}
