package bwrap

import (
	"errors"
	"os"
	"syscall"
)

// A Waiting is a bwrap that was started before it is known what it is to mount: it
// waits at a pipe for its arguments. So its start costs no time, while the launcher
// reads the configuration and makes the plan.
type Waiting struct {
	started chan struct{}
	child   *child
	err     error
}

// child is what a waiting bwrap holds, as the launcher sees it.
type child struct {
	session *Session
	open    files
	args    *os.File // write end
	info    *os.File
	seccomp *os.File // these are empty, and filled before bwrap gets its arguments
	command *os.File
	content []*os.File
}

// spares is how many plain files a Waiting has descriptors for; where a plan has
// more, another bwrap is started.
const spares = 4

// Await starts the bwrap at path, in the background. Start uses it, or Abandon ends it.
func Await(path string) *Waiting { return await(path, spares) }

func await(path string, content int) *Waiting {
	w := &Waiting{started: make(chan struct{})}
	go func() {
		w.child, w.err = newChild(path, content)
		close(w.started)
	}()
	return w
}

func (w *Waiting) take() (*child, error) {
	<-w.started
	return w.child, w.err
}

// Abandon ends a bwrap that will not be used. w may be nil.
func (w *Waiting) Abandon() {
	if w == nil {
		return
	}
	if c, err := w.take(); err == nil {
		c.abandon()
	}
}

func (c *child) abandon() {
	c.session.end()
	c.session.stderr.Close()
	syscall.Close(c.session.control)
	c.open.close()
}

func newChild(path string, content int) (*child, error) {
	c := &child{}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	read := os.NewFile(uintptr(ends[0]), "args")
	defer read.Close()
	c.args = os.NewFile(uintptr(ends[1]), "args")
	c.open = files{c.args}
	var err1, err2, err3 error
	c.seccomp, err1 = c.open.memfd("seccomp", nil)
	c.info, err2 = c.open.memfd("info", nil)
	c.command, err3 = c.open.memfd("command", nil)
	err := errors.Join(err1, err2, err3)
	for range content {
		f, e := c.open.memfd("data", nil)
		c.content = append(c.content, f)
		err = errors.Join(err, e)
	}
	if err == nil {
		c.session, err = Program{
			Path: path, Args: []string{"--args", "3", "--", InitPath},
			// The command's environment goes to sandbox-init in a file. Here a
			// variable such as LD_PRELOAD would act outside the sandbox, from a folder
			// that an agent may write to, and any would show in pid 1's environ.
			Env:       []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}, // sandbox-init starts faster, and dies silently
			Before:    []*os.File{fdArgs - 3: read, fdSeccomp - 3: c.seccomp, fdInfo - 3: c.info},
			After:     c.content,
			DieWithUs: true,
		}.fork(c.command)
	}
	if err != nil {
		c.open.close()
		return nil, err
	}
	return c, nil
}
