package bwrap

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/sys"
)

// A Waiting is a bwrap that was started before it is known what it is to mount: it
// waits at a socket for its arguments. So its start costs no time, while the launcher
// reads the configuration and makes the plan.
//
// It holds the launcher's end of the socket as well: were the end of the launcher the
// end of the arguments, bwrap would make a sandbox without any, in the moment before
// its death signal comes, and leave half of it. A bwrap that gets no such signal has to
// end by that: it fails to execute what there is only in a sandbox.
type Waiting struct {
	child *child
	err   error
	taken bool
}

// child is what a waiting bwrap holds, as the launcher sees it.
type child struct {
	session *Session
	open    files
	args    *os.File // write end
	info    *os.File // read end
	seccomp *os.File // these are empty, and filled before bwrap gets its arguments
	command *os.File
	content []*os.File
}

// spares is how many plain files a Waiting has descriptors for; where a plan has
// more, another bwrap is started.
const spares = 4

// Await starts the bwrap at path. Start uses it, or Abandon ends it.
func Await(path string) *Waiting { return await(path, spares) }

func await(path string, content int) *Waiting {
	w := &Waiting{}
	w.child, w.err = newChild(path, content)
	return w
}

// take gives the bwrap away, once.
func (w *Waiting) take() (*child, error) {
	w.taken = true
	return w.child, w.err
}

// Abandon ends the bwrap, if Start has not used it. w may be nil.
func (w *Waiting) Abandon() {
	if w == nil || w.taken {
		return
	}
	if c, err := w.take(); err == nil {
		c.abandon()
	}
}

func (c *child) abandon() {
	c.args.Close()
	c.session.end()
	keeper.EndHolders(c.session.socket) // a script's bwrap is not the child that was killed
	c.session.stderr.Close()
	syscall.Close(c.session.control)
	c.open.close()
}

func newChild(path string, content int) (*child, error) {
	c := &child{}
	var theirs files
	defer theirs.close()
	var args, info *os.File
	var err1, err2, err3, err4 error
	args, c.args, err1 = pair("args")
	c.info, info, err2 = pipe("info")
	theirs, c.open = files{args, info}, files{c.args, c.info}
	c.seccomp, err3 = c.open.memfd("seccomp", nil)
	c.command, err4 = c.open.memfd("command", nil)
	err := errors.Join(err1, err2, err3, err4)
	for range content {
		f, e := c.open.memfd("data", nil)
		c.content = append(c.content, f)
		err = errors.Join(err, e)
	}
	after := c.content
	if diesWithUs(path) {
		after = append(slices.Clip(after), c.args)
	}
	if err == nil {
		c.session, err = Program{
			Path: path, Args: []string{"--args", "3", "--", InitPath},
			// The command's environment goes to sandbox-init in a file. Here a
			// variable such as LD_PRELOAD would act outside the sandbox, from a folder
			// that an agent may write to, and any would show in pid 1's environ.
			Env:       []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}, // sandbox-init starts faster, and dies silently
			Before:    []*os.File{fdArgs - 3: args, fdSeccomp - 3: c.seccomp, fdInfo - 3: info},
			After:     after,
			DieWithUs: true,
		}.fork(c.command)
	}
	if err != nil {
		c.open.close()
		return nil, err
	}
	return c, nil
}

// diesWithUs says whether a program started from path gets the death signal that it
// is started with: one that execve(2) gives privileges does not, and a script's
// children do not.
func diesWithUs(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false // it can perhaps be executed
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || sys.HasCapabilities(f) {
		return false
	}
	magic := make([]byte, 4)
	_, err = f.ReadAt(magic, 0)
	return err == nil && string(magic) == "\x7fELF"
}

// pair is socketpair(2), of streams, close-on-exec. Where it fails the files are nil.
func pair(name string) (a, b *os.File, err error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(ends[0]), name), os.NewFile(uintptr(ends[1]), name), nil
}

// pipe is pipe2(2), close-on-exec. Where it fails the files are nil, which may be closed.
func pipe(name string) (read, write *os.File, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(ends[0]), name), os.NewFile(uintptr(ends[1]), name), nil
}
