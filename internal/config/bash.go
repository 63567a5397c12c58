package config

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/quickstart"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

const (
	// resultLimit bounds what one bash may answer, stderrLimit what is kept of
	// its messages; the rest is read and thrown away.
	resultLimit = 8 << 20
	stderrLimit = 16 << 10
	// dataLimit bounds the memory of the bash, in KiB (RLIMIT_DATA).
	dataLimit = 1 << 20

	scriptFD = 3 // the driver, closed before a file runs
	resultFD = 4
	firstFD  = 5 // of the files
)

// timeLimit is how long the files of one layer may take. A variable so that the
// tests of hanging files need not wait for it.
var timeLimit = 10 * time.Second

// shells are the places of bash. PATH is not asked: the result decides what the
// sandbox protects.
var shells = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash"}

// source runs the files of one trust level in one bash, with start as the
// variables' values, and returns what they are after each file.
//
// The files are the user's or the admin's own programs. They may do what they
// like in that bash, but all they can change is the answer that this call
// returns, which speaks for this level alone; the levels before are kept on this
// side. Whatever they started is ended before source returns.
func source(ctx context.Context, files []*file, start map[string][]string, env []string, project string) (*answer, []string, error) {
	shell := ""
	for _, s := range shells {
		if _, err := os.Stat(s); err == nil {
			shell = s
			break
		}
	}
	if shell == "" {
		return nil, nil, cli.WithHint(fmt.Errorf("cannot read the configuration: bash is not installed"), "apt install bash")
	}
	nonce, mark := newNonce(), newMark()
	extra, err := descriptors(driver(nonce, mark, files, start, project), files)
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(extra)

	c := &child{mark: mark}
	cmd := exec.Command(shell, "--noprofile", "--norc", "/proc/self/fd/"+strconv.Itoa(scriptFD))
	cmd.Env, cmd.Dir = env, "/"
	if err := c.start(cmd, extra); err != nil {
		return nil, nil, fmt.Errorf("cannot start %s: %w", shell, err)
	}
	cause := c.wait(ctx, nonce)
	a, perr := parse(c.result.data, nonce, len(files))
	messages := translate(string(c.stderr.data), files)
	switch {
	case cause == nil && perr == nil && a.complete:
		return a, messages, nil
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	}
	f := files[max(a.file, 0)]
	return nil, nil, broken(f, a.line, cause, perr, c.status, messages)
}

// broken is the error for a file after which no values could be read.
func broken(f *file, line int, cause, malformed error, status string, messages []string) error {
	var err error
	hint := "use `return` to leave a configuration file early"
	switch {
	case errors.Is(cause, errTooLong):
		err = fmt.Errorf("%s: did not end within %s", f, timeLimit)
		hint = "look for a loop without end or a command that waits"
	case errors.Is(cause, errTooLarge):
		err = fmt.Errorf("%s: the values are larger than %d MiB", f, resultLimit>>20)
		hint = "shorten the lists it sets"
	case malformed != nil:
		err = fmt.Errorf("%s: wrote into the answer of the shell (descriptor %d): %w", f, resultFD, malformed)
		hint = "leave descriptors above 2 alone"
	default:
		at := Origin{File: f.path, Line: line}
		err = fmt.Errorf("%s: the file ended the shell (%s)", at, status)
		if m := said(messages, at.String()+":", ""); line > 0 && m != "" {
			err = fmt.Errorf("%s: the file ended the shell (%s)", m, status)
		}
	}
	return cli.WithHint(err, "%s", hint)
}

// descriptors are the files that the bash gets from scriptFD on; the one for the
// result is left free.
func descriptors(script string, files []*file) ([]*os.File, error) {
	s, err := sys.MemFile("driver", []byte(script))
	if err != nil {
		return nil, err
	}
	out := []*os.File{s, nil}
	for _, f := range files {
		m, err := sys.MemFile("conf", f.content)
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// newNonce gives a word that no file can know. The percent sign makes it no name of
// a variable.
func newNonce() string { return "%" + sys.RandomHex(16) }

// newMark is a value of RLIMIT_MSGQUEUE below its default of 819200.
func newMark() int { return 400000 + int(binary.LittleEndian.Uint32(sys.Random(4))%400000) }

// driver is the program that the bash runs. It is one compound command, parsed
// as a whole before the first file runs, so that no alias changes it; functions
// and traps that a file made are taken away before values are written.
func driver(nonce string, mark int, files []*file, start map[string][]string, project string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ulimit -c 0; ulimit -d %d 2>/dev/null; ulimit -q %d 2>/dev/null\n", dataLimit, mark)
	fmt.Fprintf(&b, "exec %d<&-\n", scriptFD)
	for _, v := range Vars {
		vals := start[v.Name]
		switch {
		case len(vals) == 0:
			// An array without elements is left unset: a scalar assigned to it then
			// shows as a scalar.
		case v.Type != Array:
			fmt.Fprintf(&b, "%s=%s\n", v.Name, quote(vals[0]))
		default:
			fmt.Fprintf(&b, "%s=(. . ", v.Name)
			for _, e := range vals {
				b.WriteString(quote(e) + " ")
			}
			fmt.Fprintf(&b, "); unset '%s[0]' '%s[1]'\n", v.Name, v.Name)
		}
	}
	b.WriteString("set -T\n{\n")
	for i, f := range files {
		fmt.Fprintf(&b, "builtin printf '%%s\\0' %s begin %d >&%d\n", nonce, i, resultFD)
		fmt.Fprintf(&b, "_PROJECT_DIR=%s\n_CONFIG_FILE=%s\n_line= _last=\n", quote(project), quote(f.path))
		// The line of the last command, for a file that fails or ends the shell. The
		// trap's own command counts as one more.
		fmt.Fprintf(&b, "builtin trap 'builtin printf \"%%s\\0\" %s exit \"$_last\" >&%d' EXIT\n", nonce, resultFD)
		fmt.Fprintf(&b, "builtin trap '[[ $BASH_SOURCE != /proc/self/fd/%d ]] || { _last=$_line _line=$LINENO; }' DEBUG\n", firstFD+i)
		fmt.Fprintf(&b, "builtin source /proc/self/fd/%d\n", firstFD+i)
		b.WriteString("_status=$?\n")
		// In POSIX mode the special builtins are found before functions.
		b.WriteString("POSIXLY_CORRECT=1\nunset -f unset builtin\n")
		b.WriteString("builtin trap - DEBUG RETURN ERR EXIT\nbuiltin set +aefnuvx\n")
		fmt.Fprintf(&b, "builtin printf '%%s\\0' %s end %d \"$_status\" \"$_line\"", nonce, i)
		for _, v := range Vars {
			n := v.Name
			fmt.Fprintf(&b, " %s \"${%s[*]@a}\" \"${#%s[@]}\" \"${!%s[@]}\" \"${%s[@]}\"", n, n, n, n, n)
		}
		fmt.Fprintf(&b, " >&%d\n", resultFD)
		if i < len(files)-1 {
			for _, v := range Vars {
				b.WriteString(restart(v))
			}
			b.WriteString("builtin unset POSIXLY_CORRECT\nbuiltin set -T\n")
		}
	}
	fmt.Fprintf(&b, "builtin printf '%%s\\0' %s names %s %s done >&%d\n}\n", nonce, allNames(), nonce, resultFD)
	return b.String()
}

// restart puts a variable into the form it has at the start of a file: arrays
// from index 2 on, without elements unset, nothing of the wrong type.
//
// With the elements from 2 on, `X=x` on an array shows as an element 0 without an
// element 1, `X=(a b)` as 0 and 1, and `X+=(c)` as one more at the end.
func restart(v Var) string {
	n := v.Name
	if v.Type != Array {
		return fmt.Sprintf("[[ ${%s[*]@a} != *[aA]* ]] || builtin unset %s\n", n, n)
	}
	return fmt.Sprintf("if [[ ${#%[1]s[@]} == 0 || ${%[1]s[*]@a} != *a* ]]; then builtin unset %[1]s; else"+
		" [[ ${%[1]s[0]+0}${%[1]s[1]+1}${%[1]s[2]+2} != 02 ]] || builtin unset '%[1]s[0]';"+
		" %[1]s=(. . \"${%[1]s[@]}\"); builtin unset '%[1]s[0]' '%[1]s[1]'; fi\n", n)
}

// allNames expands to the names of all variables that begin with a capital.
func allNames() string {
	var b strings.Builder
	for c := 'A'; c <= 'Z'; c++ {
		fmt.Fprintf(&b, "\"${!%c@}\" ", c)
	}
	return b.String()
}

// quote is s as one word of bash, any bytes but NUL.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// translate cuts messages of the bash into lines, names the real file in place of
// the descriptor that was sourced, and makes each safe to print.
func translate(text string, files []*file) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "/proc/self/fd/"); ok {
			num, text, _ := strings.Cut(rest, ":")
			if n, err := strconv.Atoi(num); err == nil && n >= firstFD && n-firstFD < len(files) {
				line = files[n-firstFD].path + ":" + strings.Replace(text, " line ", "", 1)
			} else if n == scriptFD {
				_, line, _ = strings.Cut(strings.TrimPrefix(text, " line "), ": ")
			}
		}
		out = append(out, record.Escape(line))
	}
	return out
}

var (
	errTooLong  = errors.New("time limit")
	errTooLarge = errors.New("answer too large")
)

// child is the running bash and all that it starts.
type child struct {
	cmd    *exec.Cmd
	mark   int
	result sink
	stderr sink
	status string // how the bash ended, for a message
}

// sink reads one pipe of the child in a goroutine.
type sink struct {
	r     *os.File
	data  []byte
	limit int
	over  bool // more than limit came
	done  chan struct{}
}

// read keeps the first limit bytes and throws the rest away, so that the writer
// is not stopped, until the end or until enough says so.
func (s *sink) read(enough func() bool) {
	defer close(s.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := s.r.Read(buf)
		take := min(n, s.limit-len(s.data))
		s.data = append(s.data, buf[:take]...)
		s.over = s.over || take < n
		if err != nil || enough() {
			return
		}
	}
}

// start runs cmd in a session of its own: no terminal to read from, no signal
// from the caller's, and one process group to kill.
func (c *child) start(cmd *exec.Cmd, extra []*os.File) error {
	c.cmd = cmd
	rr, rw, err := os.Pipe()
	if err != nil {
		return err
	}
	er, ew, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{rr, rw})
		return err
	}
	c.result = sink{r: rr, limit: resultLimit, done: make(chan struct{})}
	c.stderr = sink{r: er, limit: stderrLimit, done: make(chan struct{})}
	defer closeAll([]*os.File{rw, ew})
	cmd.ExtraFiles = slices.Clone(extra)
	cmd.ExtraFiles[resultFD-scriptFD] = rw
	cmd.Stderr = ew
	// Pdeathsig: the bash does not outlive the launcher. wait keeps the thread.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	quickstart.Changed().Without(func() { err = cmd.Start() })
	if err != nil {
		runtime.UnlockOSThread()
		closeAll([]*os.File{rr, er})
		return err
	}
	return nil
}

// wait waits for the answer, the end of the bash, or the time limit, and ends
// every process that the bash started.
func (c *child) wait(ctx context.Context, nonce string) error {
	defer runtime.UnlockOSThread()
	// Orphans come to this process, not to init, while the bash lives.
	was := sys.Subreaper(true)
	defer sys.Subreaper(was)
	end := []byte(endFrame(nonce))
	answered := func() bool { return c.result.over || bytes.HasSuffix(c.result.data, end) }
	go c.result.read(answered)
	go c.stderr.read(func() bool { return false })
	exited := make(chan struct{})
	go func() { sys.AwaitExit(c.cmd.Process.Pid); close(exited) }()
	timer := time.NewTimer(timeLimit)
	defer timer.Stop()

	var cause error
	result := c.result.done
	for waiting := true; waiting; {
		select {
		case <-result:
			// Closed by a file, the bash may still run: its end tells how.
			waiting, result = !answered(), nil
		case <-exited:
			waiting = false
		case <-timer.C:
			waiting, cause = false, errTooLong
		case <-ctx.Done():
			waiting, cause = false, ctx.Err()
		}
	}
	c.kill(exited)
	for _, s := range []*sink{&c.result, &c.stderr} {
		select {
		case <-s.done:
		case <-time.After(time.Second): // a writer that could not be killed
			s.r.SetReadDeadline(time.Now())
			<-s.done
		}
		s.r.Close()
	}
	if cause == nil && c.result.over {
		cause = errTooLarge
	}
	return cause
}

// kill ends the process group of the bash, then what left it.
//
// The bash is reaped after its group was killed, so that the number cannot name
// another group. Then its orphans are children of this process; those that left
// the session are known by the resource limit that the driver set, which a
// process inherits and cannot raise.
func (c *child) kill(exited chan struct{}) {
	pid := c.cmd.Process.Pid
	syscall.Kill(-pid, syscall.SIGKILL)
	select {
	case <-exited:
	case <-time.After(2 * time.Second):
		c.status = "it cannot be killed"
		return
	}
	c.cmd.Wait()
	c.status = strings.Replace(c.cmd.ProcessState.String(), "exit status", "status", 1)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		orphans := slices.DeleteFunc(sys.Children(), func(p int) bool { return !c.marked(p) })
		if len(orphans) == 0 {
			return
		}
		for _, p := range orphans {
			syscall.Kill(p, syscall.SIGKILL)
			for i := 0; i < 1000 && !sys.Reap(p); i++ {
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// marked says whether a child of this process was started by the bash.
func (c *child) marked(pid int) bool {
	if sys.Session(pid) == c.cmd.Process.Pid {
		return true
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && f[1] == "msgqueue" {
			return f[3] == strconv.Itoa(c.mark)
		}
	}
	return false
}
