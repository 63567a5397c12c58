package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"agent-sandbox/internal/cli"
)

func quote(s string) string { return cli.Quote(s) }

// plain refuses what would break a line of output or end a C string.
func plain(v string) error {
	if len(v) > maxValue {
		return fmt.Errorf("longer than %d bytes", maxValue)
	}
	for i := range len(v) {
		if v[i] < ' ' || v[i] == 0x7f {
			return fmt.Errorf("the value %s has control characters", quote(v))
		}
	}
	return nil
}

// maxValue is the most bytes of one flag's value.
const maxValue = 8192

// like checks a value by a pattern that has to match it as a whole.
func like(pattern, what string) func(string) error {
	re := regexp.MustCompile(`\A(?:` + pattern + `)\z`)
	return func(v string) error {
		if !re.MatchString(v) {
			return fmt.Errorf("%s is not %s", quote(v), what)
		}
		return nil
	}
}

// oneOf checks a comma-separated list of words, in any case.
func oneOf(words ...string) func(string) error {
	return func(v string) error {
		for _, w := range strings.Split(v, ",") {
			if !slices.Contains(words, strings.ToLower(w)) {
				return fmt.Errorf("%s cannot be given: want %s", quote(w), strings.Join(words, ", "))
			}
		}
		return nil
	}
}

var (
	number = like(`[0-9]{1,10}`, "a number")
	// Counts: min-max, with k and m as nodes have them.
	count    = like(`[0-9]{1,10}[kKmM]?(-[0-9]{1,10}[kKmM]?)?`, "a count")
	size     = like(`[0-9]{1,15}([kKmMgGtT][bB]?)?`, "a size")
	span     = like(`[0-9]{1,9}(-[0-9]{1,4})?(:[0-9]{1,4}){0,2}|(?i:unlimited|infinite)`, "a time")
	date     = like(`[0-9A-Za-z][0-9A-Za-z:+/.-]{0,63}`, "a date")
	name     = like(`[0-9A-Za-z_][0-9A-Za-z_.@+-]*`, "a name")
	names    = like(`[0-9A-Za-z_][0-9A-Za-z_.@+-]*(,[0-9A-Za-z_][0-9A-Za-z_.@+-]*)*`, "a list of names")
	feature  = like(`[0-9A-Za-z_.,&|*()\[\]!:@+-]+`, "a list of features")
	tres     = like(`[0-9A-Za-z_][0-9A-Za-z_.,:=()*/-]*`, "a list of resources")
	licenses = like(`[0-9A-Za-z_][0-9A-Za-z_.@,:|;-]*`, "a list of licenses")
	// A host list with a slash is the name of a file that the real command reads.
	hosts  = like(`[0-9A-Za-z_][0-9A-Za-z_.,*\[\]:-]*`, "a list of nodes")
	shape  = like(`[0-9*]{1,6}(-[0-9]{1,6})?(:[0-9*]{1,6}(-[0-9]{1,6})?){0,2}`, "sockets:cores:threads")
	bind   = like(`[0-9A-Za-z_][0-9A-Za-z_,:*-]*`, "a binding")
	signal = like(`([RBrb]{1,2}:)?[A-Za-z0-9]{1,12}(@[0-9]{1,6})?`, "a signal")
	array  = like(`[0-9]+(-[0-9]+)?(:[0-9]+)?(,[0-9]+(-[0-9]+)?(:[0-9]+)?)*(%[0-9]+)?`, "a list of array indexes")
	nice   = like(`-?[0-9]{1,10}`, "a number")
	yesno  = oneOf("yes", "no")
	states = like(`[A-Za-z_,]+`, "a list of states")
	ids    = like(`[0-9_,.+%:\[\]a-z-]+`, "a list of jobs")
	sort   = like(`[A-Za-z+,-]+`, "a list of fields")
	text   = func(string) error { return nil } // plain holds what it must not have
)

// dependency checks the form; whether the jobs are in scope is checked when the
// jobs are known.
func dependency(v string) error {
	for _, d := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == '?' }) {
		if d == "singleton" {
			continue
		}
		if !dependencyRE.MatchString(d) {
			return fmt.Errorf("%s is no dependency: want after, afterany, afterok, afternotok or aftercorr with job ids, or singleton", quote(d))
		}
	}
	return nil
}

var (
	dependencyRE   = regexp.MustCompile(`\A(after|afterany|afterok|afternotok|aftercorr)(:[0-9]{1,10}(_[0-9]{1,10}|_\*)?(\+[0-9]{1,10})?)+\z`)
	dependencyJobs = regexp.MustCompile(`:([0-9]{1,10})`)
)

// export checks --export. Values are set inside the sandbox, never for the real
// command, so that names need no list.
func export(v string) error {
	_, err := exports(v)
	return err
}

// exports are the variables that --export sets for the job.
func exports(v string) ([]string, error) {
	if v == "" {
		return nil, errors.New("is empty")
	}
	var out []string
	for _, e := range strings.Split(v, ",") {
		n, _, set := strings.Cut(e, "=")
		switch {
		case e == "ALL":
		case !set:
			return nil, fmt.Errorf("%s: only ALL and NAME=VALUE can be given: the job gets the session's environment", quote(e))
		case !variable.MatchString(n):
			return nil, fmt.Errorf("%s is no name of a variable", quote(n))
		default:
			out = append(out, e)
		}
	}
	return out, nil
}

var variable = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]*\z`)
