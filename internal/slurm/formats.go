package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// queueFormat checks squeue's --format: text and %[.][width]LETTER. The word all
// is squeue's for every field there is, comments of any width among them.
func queueFormat(v string) error {
	if allRE.MatchString(v) {
		return errors.New("name the fields: %all is not for the sandbox")
	}
	if !formatRE.MatchString(v) {
		return fmt.Errorf("%s is no format", quote(v))
	}
	return nil
}

var allRE = regexp.MustCompile(`(?i)%\.?[0-9]*all`)

var formatRE = regexp.MustCompile(`\A(?:[^%]|%\.?[0-9]{0,4}[A-Za-z])*\z`)

// infoFormat checks sinfo's --format: a node's reason has the name of the user
// who gave it, in %u and %U.
func infoFormat(v string) error {
	if regexp.MustCompile(`%\.?[0-9]*[uUg]`).MatchString(v) {
		return errors.New("%u, %U and %g show other users and groups")
	}
	return queueFormat(v)
}

// queueFields checks squeue's --Format, infoFields sinfo's: NAME[:[.][size][suffix]], …
func queueFields(v string) error {
	// Files of the real command are none of the job's, as the session has it.
	return fieldList(v, "all", "comment", "stdin", "stdout", "stderr")
}

func infoFields(v string) error {
	return fieldList(v, "all", "user", "userlong", "groups", "comment", "extra")
}

func fieldList(v string, never ...string) error {
	for _, f := range strings.Split(v, ",") {
		m := fieldRE.FindStringSubmatch(f)
		if m == nil {
			return fmt.Errorf("%s is no field", quote(f))
		}
		for _, n := range never {
			if strings.EqualFold(m[1], n) {
				if n == "comment" {
					return errors.New("the field Comment is not for the sandbox: use --format with %k")
				}
				return fmt.Errorf("the field %s is not for the sandbox", m[1])
			}
		}
	}
	return nil
}

var fieldRE = regexp.MustCompile(`\A *([A-Za-z_-]+)(?::\.?[0-9]{0,4}[^%,]{0,16})?\z`)

// fields checks the list of fields of sstat and sshare.
func fields(v string) error {
	for _, f := range strings.Split(v, ",") {
		if !regexp.MustCompile(`\A[A-Za-z_]+(%-?[0-9]{1,4})?\z`).MatchString(f) {
			return fmt.Errorf("%s is no field", quote(f))
		}
	}
	return nil
}

// acctFields checks the list of fields of sacct: not those that hold the command
// line that the chaperon ran.
func acctFields(v string) error {
	for _, f := range strings.Split(v, ",") {
		n, _, _ := strings.Cut(f, "%")
		switch strings.ToLower(n) {
		case "all", "submitline", "admincomment", "systemcomment", "container":
			return fmt.Errorf("the field %s is not for the sandbox", quote(n))
		}
	}
	return fields(v)
}

// A comment in squeue's output has to be seen whole to find the tag in it, and
// is then cut to what was asked for. So %k goes without a width, between marks,
// with the client's width as text before it.
var (
	commentField = regexp.MustCompile(`%(\.?)([0-9]{0,4})k`)
	commentShown = regexp.MustCompile(`\x1e(\.?)([0-9]*)\|([^\x1e\x1f]*)\x1f`)
)

func markComments(format string) string {
	return commentField.ReplaceAllString(format, openMark+"$1$2|%k"+closeMark)
}

func showComments(out string) string {
	return commentShown.ReplaceAllStringFunc(out, func(m string) string {
		p := commentShown.FindStringSubmatch(m)
		return pad(untag(p[3], "(null)"), p[2], p[1] == ".")
	})
}

// pad cuts and fills a field as Slurm does, by bytes.
func pad(s, width string, right bool) string {
	w, err := strconv.Atoi(width)
	if err != nil || w == 0 {
		return s
	}
	switch n := len(s); {
	case n > w:
		return s[:w]
	case right:
		return strings.Repeat(" ", w-n) + s
	default:
		return s + strings.Repeat(" ", w-n)
	}
}
