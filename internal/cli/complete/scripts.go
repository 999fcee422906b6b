package complete

import (
	"fmt"
	"slices"
	"strings"
)

// Shells lists the shells there is a script for.
var Shells = []string{"bash", "zsh", "fish"}

var scripts = map[string]string{
	"bash": `# Completion of helmdeck for bash: source <(helmdeck completion bash)
_helmdeck() {
	local candidates
	candidates=$(helmdeck COMMAND "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	local IFS=$'\n'
	COMPREPLY=($candidates)
}
complete -o default -F _helmdeck helmdeck
`,
	"zsh": `#compdef helmdeck
# Completion of helmdeck for zsh: source <(helmdeck completion zsh)
_helmdeck() {
	local -a candidates
	candidates=(${(f)"$(helmdeck COMMAND "${(@)words[2,CURRENT]}" 2>/dev/null)"})
	if (( ${#candidates} )); then
		compadd -- $candidates
	else
		_files
	fi
}
compdef _helmdeck helmdeck
# A file in fpath is run as the function itself the first time.
if [ "$funcstack[1]" = "_helmdeck" ]; then
	_helmdeck
fi
`,
	"fish": `# Completion of helmdeck for fish: helmdeck completion fish | source
function __helmdeck_complete
	set -l words (commandline -opc)
	helmdeck COMMAND $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c helmdeck -a '(__helmdeck_complete)'
`,
}

// Script is the script for a shell.
func Script(shell string) (string, error) {
	if !slices.Contains(Shells, shell) {
		return "", fmt.Errorf("no completion for %q; there is one for %s", shell, strings.Join(Shells, ", "))
	}
	return strings.ReplaceAll(scripts[shell], "COMMAND", Command), nil
}
