package slurm

// ScriptArg says where sbatch would read its script from: the file path, or standard
// input where that is empty. It reads none (ok false) with --wrap, where it only
// shows a text, and where the arguments are refused anyway.
func ScriptArg(args []string) (path string, ok bool) {
	flags, rest, err := tables["sbatch"].parse(args, true)
	if err != nil || flags.has("wrap") || flags.has("help") || flags.has("usage") || flags.has("version") {
		return "", false
	}
	if len(rest) > 0 {
		return rest[0], true
	}
	return "", true
}
