package slurm

import "strings"

// ScriptArg says where sbatch would read its script from: the file path, or standard
// input where that is empty. It reads none (ok false) with --wrap, where it only
// shows a text, and where the arguments are refused anyway.
func ScriptArg(args []string) (path string, ok bool) {
	for _, a := range args {
		if strings.HasPrefix(a, "--wrap") || a == "--help" || a == "--version" {
			return "", false
		}
		if !strings.HasPrefix(a, "-") {
			return a, true
		}
	}
	return "", true
}
