package slurm

// ScriptArg says where sbatch reads its script from with these arguments: the
// file path, or standard input where path is empty. It is false where there is
// none to read: with --wrap, --help and the like, and where the chaperon refuses
// the arguments anyway.
func ScriptArg(args []string) (path string, ok bool) {
	flags, rest, err := tables["sbatch"].parse(args, true)
	if err != nil {
		return "", false
	}
	for _, n := range []string{"wrap", "help", "usage", "version"} {
		if flags.has(n) {
			return "", false
		}
	}
	if len(rest) > 0 {
		return rest[0], true
	}
	return "", true
}
