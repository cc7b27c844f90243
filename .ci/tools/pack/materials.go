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

// rootsModule is where the certificate authorities come from; this program is built with the version that it packs.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// The documents of SPDX 2.3, as far as they are used here.
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

// materials lists every module that is linked into a program, as the program itself tells, and what else is in its image.
func materials(programs []program) ([]byte, error) {
	first := programs[0]
	self, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("list materials of %s: pack was built without modules: run it with `go tool` or `go run`", first.name())
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

// component is the program as SPDX tells of it.
func (p program) component() component {
	c := module(p.info.Main.Path, p.version(), p.info.Main.Sum)
	c.Name, c.ID = p.name(), identifier(p.name(), p.setting("GOARCH"))
	c.LicenseDeclared = "Apache-2.0"
	c.Checksums = []checksum{{"SHA256", p.sum()}}
	return c
}

// version is empty for a program that was built from no commit.
func (p program) version() string { return strings.TrimPrefix(p.info.Main.Version, "(devel)") }

// linked are the modules of any of the programs, and the standard library.
func linked(programs []program) (all []component) {
	for _, p := range programs {
		all = append(all, module("stdlib", strings.TrimPrefix(p.info.GoVersion, "go"), ""))
		for _, m := range p.info.Deps {
			switch {
			case m.Replace == nil:
			case strings.HasPrefix(m.Replace.Path, "."): // by a folder of the same repository
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

// locator is a package URL, whose version may be missing.
func locator(path, version string) string {
	url := "pkg:golang/" + strings.ToLower(path)
	if version != "" {
		url += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return url
}

// foreign is what an identifier of SPDX may not hold.
var foreign = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func identifier(parts ...string) string {
	return "SPDXRef-" + foreign.ReplaceAllString(strings.Join(parts, "-"), "-")
}
