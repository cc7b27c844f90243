package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

const repository = "github.com/stunner-gateway/stunner"

// rootsModule provides the certificate authorities; this program packs the version that it is built with.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// The used part of SPDX 2.3.
type (
	document struct {
		Version       string         `json:"spdxVersion"`
		License       string         `json:"dataLicense"`
		ID            string         `json:"SPDXID"`
		Name          string         `json:"name"`
		Namespace     string         `json:"documentNamespace"`
		Creation      creation       `json:"creationInfo"`
		Packages      []component    `json:"packages"`
		Relationships []relationship `json:"relationships"`
	}
	creation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	component struct {
		Name             string      `json:"name"`
		ID               string      `json:"SPDXID"`
		Version          string      `json:"versionInfo"`
		Location         string      `json:"downloadLocation"`
		Analyzed         bool        `json:"filesAnalyzed"`
		LicenseConcluded string      `json:"licenseConcluded"`
		LicenseDeclared  string      `json:"licenseDeclared"`
		Copyright        string      `json:"copyrightText"`
		Source           string      `json:"sourceInfo,omitempty"`
		Checksums        []checksum  `json:"checksums,omitempty"`
		References       []reference `json:"externalRefs,omitempty"`
	}
	checksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	reference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	relationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const (
	documentID = "SPDXRef-DOCUMENT"
	unknown    = "NOASSERTION"
)

// materials returns a document with every module in the build information of the programs, and the other contents of
// the image.
func materials(programs []program) ([]byte, error) {
	first := programs[0]
	self, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf(
			"list materials of %s: pack was built without modules: run it with `go tool` or `go run`", first.name(),
		)
	}
	doc := document{
		Version:   "SPDX-2.3",
		License:   "CC0-1.0",
		ID:        documentID,
		Name:      first.name(),
		Namespace: "https://" + repository + "/spdx/" + first.name() + "/" + first.sum(),
		Creation:  creation{Created: first.created().Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: pack"}},
	}
	parts := linked(programs)
	for _, m := range self.Deps {
		if m.Path == rootsModule {
			parts = append(parts, module(m.Path, m.Version, m.Sum))
		}
	}
	for _, p := range programs {
		c := p.component()
		doc.Packages = append(doc.Packages, c)
		doc.Relationships = append(doc.Relationships, relationship{documentID, "DESCRIBES", c.ID})
		for _, part := range parts {
			doc.Relationships = append(doc.Relationships, relationship{c.ID, "CONTAINS", part.ID})
		}
	}
	doc.Packages = append(doc.Packages, parts...)
	return json.MarshalIndent(doc, "", "  ")
}

// component returns the SPDX package of a program.
func (p program) component() component {
	c := module(p.info.Main.Path, p.version(), p.info.Main.Sum)
	c.Name, c.ID = p.name(), identifier(p.name(), p.setting("GOARCH"))
	c.LicenseDeclared = "Apache-2.0"
	c.Checksums = []checksum{{"SHA256", p.sum()}}
	return c
}

// version returns the version of a program, empty if it was not built from a commit.
func (p program) version() string { return strings.TrimPrefix(p.info.Main.Version, "(devel)") }

// linked returns the modules of all programs, and the standard library.
func linked(programs []program) (all []component) {
	for _, p := range programs {
		all = append(all, module("stdlib", strings.TrimPrefix(p.info.GoVersion, "go"), ""))
		for _, m := range p.info.Deps {
			switch {
			case m.Replace == nil:
			case strings.HasPrefix(m.Replace.Path, "."): // a folder of this repository
				m = &debug.Module{Path: m.Path, Version: p.version()}
			default:
				m = m.Replace
			}
			all = append(all, module(m.Path, m.Version, m.Sum))
		}
	}
	slices.SortFunc(all, func(a, b component) int { return strings.Compare(a.ID, b.ID) })
	return slices.CompactFunc(all, func(a, b component) bool { return a.ID == b.ID })
}

func module(path, version, sum string) component {
	c := component{
		Name: path, ID: identifier(path, version), Version: version,
		Location: unknown, LicenseConcluded: unknown, LicenseDeclared: unknown, Copyright: unknown,
		References: []reference{{"PACKAGE-MANAGER", "purl", locator(path, version)}},
	}
	if sum != "" {
		c.Source = "checksum of the module in go.sum: " + sum
	}
	return c
}

// locator returns a package URL. The version is optional.
func locator(path, version string) string {
	url := "pkg:golang/" + strings.ToLower(path)
	if version != "" {
		url += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return url
}

// foreign matches characters that are not allowed in SPDX identifiers.
var foreign = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func identifier(parts ...string) string {
	return "SPDXRef-" + foreign.ReplaceAllString(strings.Join(parts, "-"), "-")
}
