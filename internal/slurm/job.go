package slurm

import (
	"bytes"
	"fmt"
	"strings"
)

// A job is a client's command as it runs on its node: by the launcher, in the
// project's sandbox. What names files of the client is opened in there.
type job struct {
	session *Session
	cwd     string   // physical, checked
	args    []string // arguments of the script, or the command of a step
	export  []string // K=V, of --export
	env     []string // K=V, of the launcher on the node; see call.carried
	// Patterns as Slurm's --input, --output and --error have them; error empty:
	// with the output. An empty output or input of a step is srun's own.
	input, output, error string
	append               bool
	step                 bool // started by srun
}

// shellQuote makes one word for a POSIX shell, of any bytes but NUL.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// inside is the text of the shell that runs inside the sandbox. It sees what the
// client sees, and opens the client's files as the client could.
//
// A batch script comes as the shell's standard input (see script).
func (j *job) inside() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cd -- %s || exit 1\n", shellQuote(j.cwd))
	if j.step {
		// srun itself would take a lone colon among its words as the beginning of
		// another job with flags of its own: it sees none of the client's words.
		b.WriteString("set --")
		for _, a := range j.args {
			b.WriteString(" " + shellQuote(a))
		}
		b.WriteByte('\n')
	}
	// Before any program runs: the shell's own error output is a file that the
	// client is not to write.
	to := ">"
	if j.append {
		to = ">>"
	}
	if j.step && !j.append && !perTask(j.output) {
		// Tasks that share a file do not empty it for each other.
		b.WriteString("if [ \"${SLURM_STEP_NUM_TASKS:-1}\" -gt 1 ]; then :\n" + j.redirects(">>") + "else :\n" + j.redirects(">") + "fi\n")
	} else {
		b.WriteString(j.redirects(to))
	}
	if !j.step {
		// Where Slurm's own copy lies is not to be seen in here.
		b.WriteString("f=$(mktemp /tmp/slurm_script.XXXXXX) || exit 1\n" +
			"LC_ALL=C sed -n 's/^" + dataMark + "//p' >\"$f\" && chmod 700 \"$f\" || exit 1\n")
	}
	if j.input != "" {
		fmt.Fprintf(&b, "exec <%s || exit 1\n", j.pattern(j.input))
	}
	for _, e := range j.export {
		n, v, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", n, shellQuote(v))
	}
	if j.step {
		// As slurmstepd says it, and with its status.
		b.WriteString("command -v -- \"$1\" >/dev/null || { echo \"slurmstepd: error: execve(): $1: No such file or directory\" >&2; exit 2; }\n" +
			"exec \"$@\"\n")
	} else {
		b.WriteString("exec \"$f\" \"$@\"\n")
	}
	return b.String()
}

// redirects are the lines that open output and error.
func (j *job) redirects(to string) string {
	var b strings.Builder
	if j.output != "" {
		fmt.Fprintf(&b, "exec %s%s || exit 1\n", to, j.pattern(j.output))
	}
	switch {
	case j.error != "" && j.error != j.output:
		fmt.Fprintf(&b, "exec 2%s%s || exit 1\n", to, j.pattern(j.error))
	case j.output != "":
		b.WriteString("exec 2>&1\n")
	}
	return b.String()
}

// command is the launcher's command line for the job.
func (j *job) command() []string {
	// On a node without bwrap the launcher would choose another backend, and landlock
	// leaves munge's socket open: the job would be less confined than the session.
	words := []string{j.session.Launcher, "--physical", "--project-dir", j.session.Project, "--backend", "bwrap", "--", "/bin/sh", "-c", j.inside()}
	if j.step {
		var set strings.Builder
		for _, e := range j.env {
			n, v, _ := strings.Cut(e, "=")
			fmt.Fprintf(&set, "export %s=%s\n", n, shellQuote(v))
		}
		return append([]string{"/bin/sh", "-c", set.String() + "exec \"$@\"", "sh"}, words...)
	}
	return append(append(words, "slurm_script"), j.args...)
}

// newline is the variable of the batch script that holds one.
const newline = "_agent_sandbox_newline"

// dataMark begins each line of the client's script in the batch script that is
// submitted: a comment to every shell, and no directive of any batch system.
const dataMark = "#>"

// script is the batch script that is submitted: it starts the launcher and gives
// it the client's script, line by line behind a mark, on its standard input.
// No line of it begins with what a client chose: a newline inside a quoted word is
// written as a variable.
func (j *job) script(client []byte) []byte {
	var b bytes.Buffer
	word := func(w string) string { return strings.ReplaceAll(shellQuote(w), "\n", `'"$`+newline+`"'`) }
	b.WriteString("#!/bin/sh\n" + newline + "='\n'\n")
	for _, e := range j.env {
		n, v, _ := strings.Cut(e, "=")
		b.WriteString("export " + n + "=" + word(v) + "\n")
	}
	b.WriteString("exec")
	for _, w := range j.command() {
		b.WriteString(" " + word(w))
	}
	b.WriteString(" <\"$0\"\nexit 125\n")
	for len(client) > 0 {
		i := bytes.IndexByte(client, '\n')
		if i < 0 {
			i = len(client) - 1
		}
		b.WriteString(dataMark)
		b.Write(client[:i+1])
		client = client[i+1:]
	}
	return b.Bytes()
}

// pattern makes a word for the shell inside from a file name pattern of Slurm's
// (fname_create in slurmstepd/fname.c, and the section FILENAME PATTERN of
// sbatch(1)). A backslash anywhere turns patterns off and is taken away.
func (j *job) pattern(p string) string {
	var out, lit strings.Builder
	flush := func() {
		if lit.Len() > 0 {
			out.WriteString(shellQuote(lit.String()))
			lit.Reset()
		}
	}
	if strings.Contains(p, `\`) {
		for i := 0; i < len(p); i++ {
			if p[i] == '\\' && i+1 < len(p) {
				i++
			}
			lit.WriteByte(p[i])
		}
		p = ""
	}
	for i := 0; i < len(p); i++ {
		if p[i] != '%' || i+1 == len(p) {
			lit.WriteByte(p[i])
			continue
		}
		e := i + 1
		width := 0
		for e < len(p) && '0' <= p[e] && p[e] <= '9' {
			width = min(width*10+int(p[e]-'0'), 10)
			e++
		}
		if e < len(p) && p[e] == '%' && e == i+1 {
			lit.WriteByte('%')
			i = e
			continue
		}
		word := ""
		if e < len(p) {
			word = j.field(p[e], width)
		}
		if word == "" {
			lit.WriteByte('%')
			continue
		}
		flush()
		out.WriteString(word)
		i = e
	}
	flush()
	if out.Len() == 0 {
		return "''"
	}
	return out.String()
}

// field is a double-quoted word for a letter of a pattern, empty for one that is none.
func (j *job) field(c byte, width int) string {
	num := func(v string) string {
		if width > 0 {
			return fmt.Sprintf(`"$(printf %%0%dd %s)"`, width, v)
		}
		return `"` + v + `"`
	}
	switch c {
	case 'A':
		return num("${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}")
	case 'a':
		return num("${SLURM_ARRAY_TASK_ID:-4294967294}") // NO_VAL of slurm.h, as Slurm prints it
	case 'j':
		return num("$SLURM_JOB_ID")
	case 'J':
		if j.step {
			return `"$SLURM_JOB_ID.$SLURM_STEP_ID"`
		}
		return num("$SLURM_JOB_ID")
	case 'N':
		return `"$SLURMD_NODENAME"`
	case 'n':
		return num("$SLURM_NODEID")
	case 's':
		if j.step {
			return num("$SLURM_STEP_ID")
		}
		return "batch"
	case 't':
		return num("$SLURM_PROCID")
	case 'u':
		return shellQuote(j.session.User)
	case 'x':
		return `"$SLURM_JOB_NAME"`
	}
	return ""
}

// perTask says that each task of a step has an output file of its own.
func perTask(p string) bool {
	if strings.Contains(p, `\`) {
		return false
	}
	for i := 0; i+1 < len(p); i++ {
		if p[i] != '%' {
			continue
		}
		i++
		for i+1 < len(p) && '0' <= p[i] && p[i] <= '9' {
			i++
		}
		if p[i] == 't' {
			return true
		}
	}
	return false
}
