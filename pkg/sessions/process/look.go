package process

import (
	"os"
	"os/exec"
)

// Findings say what sidecars on this machine are made of.
type Findings struct {
	// Agent is the program of the agent, Engines the folder with node_modules,
	// Chromium the browser; each is empty when it is missing.
	Agent, Engines, Chromium string
	// Path lists the folders that programs of the engines are looked up in,
	// before the system's.
	Path []string
	// Namespaces is nil when sidecars get pid and mount namespaces of their
	// own, else why the system refuses them.
	Namespaces error
	// OwnUID: each sidecar runs under another uid, since this process is root.
	OwnUID bool
}

// Look finds what a Runtime with the zero Config would use. It starts a
// program that does nothing to learn what the system allows.
func Look() Findings {
	c := Config{}.withDefaults()
	f := Findings{Engines: c.Engines, Chromium: c.Chromium, OwnUID: os.Getuid() == 0}
	if executable(c.AgentPath) {
		f.Agent = c.AgentPath
	}
	if f.Engines != "" {
		f.Path = enginePath(f.Engines)
	}
	r := &Runtime{cfg: c, uid: os.Getuid()}
	nothing, err := exec.LookPath("true")
	if err != nil {
		f.Namespaces = err
		return f
	}
	cmd := &exec.Cmd{Path: nothing, Args: []string{"true"}, Env: []string{}, Dir: "/", SysProcAttr: r.attributes(false)}
	f.Namespaces = cmd.Run()
	return f
}
