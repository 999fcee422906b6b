// Package engines finds the programs outside helmdeck that packs need, says
// what each enables and how to install what is missing.
package engines

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions/process"
)

// Setup is the command that installs all engines.
const Setup = "./task setup"

// Engine is one program, or one part of what sidecars are made of.
type Engine struct {
	Name string `json:"name"`
	// Path is where it is; empty when it is missing.
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Enables says what needs it: packs, or what is lost without it.
	Enables string `json:"enables"`
	// Packs are the packs that do not run without it.
	Packs []string `json:"packs,omitempty"`
	// Required is false for what only makes something better.
	Required bool   `json:"required"`
	Install  string `json:"install,omitempty"`
}

// Found reports whether it is there.
func (e Engine) Found() bool { return e.Path != "" }

// Report is the state of this machine.
type Report struct {
	Engines []Engine `json:"engines"`
	// Sandbox says how far sidecar processes are walled off here.
	Sandbox Sandbox `json:"sandbox"`
}

// Sandbox is what the process runtime can do on this machine.
type Sandbox struct {
	// Namespaces: pid and mount namespaces of their own; Reason says why not.
	Namespaces bool   `json:"namespaces"`
	Reason     string `json:"reason,omitempty"`
	// OwnUID: each sidecar under another user id, only as root.
	OwnUID bool `json:"own_uid"`
	// Network: the system can take the network away from a program, so that
	// the egress proxy is the only way out and not a courtesy.
	Network bool `json:"network"`
}

// Missing lists the required engines that are not there.
func (r Report) Missing() []Engine {
	var out []Engine
	for _, e := range r.Engines {
		if e.Required && !e.Found() {
			out = append(out, e)
		}
	}
	return out
}

// Lacking lists the engines that pack needs and that are not there.
func (r Report) Lacking(pack string) []string {
	var out []string
	for _, e := range r.Missing() {
		for _, p := range e.Packs {
			if p == pack {
				out = append(out, e.Name)
			}
		}
	}
	return out
}

// Reason is why pack cannot run here and how to change that; empty when it can.
func (r Report) Reason(pack string) string {
	lacking := r.Lacking(pack)
	if len(lacking) == 0 {
		return ""
	}
	return strings.Join(lacking, ", ") + " not found on this machine; install with " + Setup + ", then start helmdeck again"
}

const (
	screenshots = "browser.screenshot_url"
	slides      = "slides.render"
)

// Find looks for everything. A full look also asks each program for its
// version and tries what the system lets sidecars do, which takes a moment;
// Version and Sandbox are empty otherwise. ctx bounds it.
func Find(ctx context.Context, full bool) Report {
	look := process.Look()
	if real, err := os.Readlink(look.Agent); err == nil {
		look.Agent = real // of /proc/self/exe
	}
	folders := look.Path
	node := program(folders, "node")
	r := Report{Engines: []Engine{
		{Name: "chromium", Path: look.Chromium, Enables: "browser.*, slides.render", Packs: []string{screenshots, slides},
			Required: true, Install: Setup + ", or: apt-get install chromium-headless-shell"},
		{Name: "node", Path: node, Enables: "slides.render", Packs: []string{slides},
			Required: true, Install: Setup + ", or: apt-get install nodejs"},
		{Name: "marp", Path: inEngines(look.Engines, "node_modules/@marp-team/marp-cli"), Enables: "slides.render", Packs: []string{slides},
			Required: true, Install: Setup},
		{Name: "mermaid", Path: inEngines(look.Engines, "mermaid.min.js"), Enables: "diagrams in slides.render", Packs: []string{slides},
			Required: true, Install: Setup},
		{Name: "agent", Path: look.Agent, Enables: "every pack with a sidecar", Packs: []string{screenshots, slides},
			Required: true, Install: "put helmdeck-agent beside helmdeck (./task build makes both)"},
		{Name: "git", Path: program(nil, "git"), Enables: "repositories", Install: "apt-get install git"},
		{Name: "pdftotext", Path: program(nil, "pdftotext"), Enables: "reading PDF files", Install: "apt-get install poppler-utils"},
		{Name: "bwrap", Path: program(nil, "bwrap"), Enables: "sidecars without a network of their own", Install: "apt-get install bubblewrap"},
	}}
	if full {
		r.Sandbox = sandbox(ctx, look)
		for i := range r.Engines {
			r.Engines[i].Version = version(ctx, r.Engines[i])
		}
	}
	return r
}

func sandbox(ctx context.Context, look process.Findings) Sandbox {
	s := Sandbox{Namespaces: look.Namespaces == nil, OwnUID: look.OwnUID}
	if look.Namespaces != nil {
		s.Reason = look.Namespaces.Error()
	}
	if bwrap := program(nil, "bwrap"); bwrap != "" {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		cmd := exec.CommandContext(ctx, bwrap, "--unshare-net", "--ro-bind", "/", "/", "true")
		s.Network = cmd.Run() == nil
	}
	return s
}

func program(folders []string, name string) string {
	for _, dir := range folders {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func inEngines(dir, name string) string {
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// answerWithin bounds a program that is asked for its version: a browser on a
// busy machine takes its time.
const answerWithin = 15 * time.Second

var number = regexp.MustCompile(`\d+(\.\d+)+`)

// version asks the engine; empty when it does not say.
func version(ctx context.Context, e Engine) string {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	arg := "--version"
	switch e.Name {
	case "marp":
		v, err := packageVersion(e.Path)
		if err != nil {
			return ""
		}
		return v
	case "mermaid", "agent", "":
		return ""
	case "pdftotext":
		arg = "-v"
	}
	if !e.Found() {
		return ""
	}
	cmd := exec.CommandContext(ctx, e.Path, arg)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return ""
	}
	return number.FindString(firstLine(string(out)))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func packageVersion(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return "", err
	}
	var p struct {
		Version string `json:"version"`
	}
	err = json.Unmarshal(text, &p)
	return p.Version, err
}
