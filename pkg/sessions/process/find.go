package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// findAgent is the default of Config.AgentPath and AgentArgs.
func findAgent() (string, []string) {
	exe, err := os.Executable()
	if err != nil {
		return "", nil
	}
	if filepath.Base(exe) == "helmdeck" {
		// Not by name: the file may have been replaced by a newer one.
		return "/proc/self/exe", []string{"agent"}
	}
	dir := filepath.Dir(exe)
	if whole := filepath.Join(dir, "helmdeck"); !executable(filepath.Join(dir, "helmdeck-agent")) && executable(whole) {
		return whole, []string{"agent"}
	}
	return filepath.Join(dir, "helmdeck-agent"), nil
}

// findEngines is the default of Config.Engines; empty when there is none.
func findEngines() string {
	candidates := []string{os.Getenv("HELMDECK_ENGINES_DIR"), "/var/lib/helmdeck/engines"}
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		if home, err := os.UserHomeDir(); err == nil {
			data = filepath.Join(home, ".local", "share")
		}
	}
	if data != "" {
		candidates = append(candidates, filepath.Join(data, "helmdeck", "engines"))
	}
	for _, c := range candidates {
		if info, err := os.Stat(filepath.Join(c, "node_modules")); c != "" && err == nil && info.IsDir() {
			if real, err := filepath.EvalSymlinks(c); err == nil {
				return real
			}
		}
	}
	return ""
}

// enginePath is what the engines add to a sidecar's path; a Node of their own
// comes before the system's.
func enginePath(engines string) []string {
	return []string{
		filepath.Join(engines, "node_modules", "node", "bin"),
		filepath.Join(engines, "node_modules", ".bin"),
	}
}

// findChromium is the default of Config.Chromium; empty when there is none.
// The programs themselves come before the scripts that start them: a browser
// must be the agent's own child. The headless shell starts three times faster.
func findChromium() string {
	for _, c := range []string{
		"/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell",
		"/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome",
	} {
		if p, err := exec.LookPath(c); err == nil {
			return p
		}
	}
	return ""
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// blockedAncestor is the topmost folder on the way to path, itself excluded,
// that other uids may not pass; empty when the way is free.
func blockedAncestor(path string) string {
	var way []string
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		way = append(way, p)
		if p == filepath.Dir(p) {
			break
		}
	}
	for i := len(way) - 1; i >= 0; i-- {
		info, err := os.Stat(way[i])
		if err == nil && info.Mode()&0o001 == 0 {
			return way[i]
		}
	}
	return ""
}

// within reports whether path is folder or lies in it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
