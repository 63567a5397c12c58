// Command floor is the least that a launcher in Go and a supervisor in Go can do: one
// starts bwrap with arguments that it reads from a file, has the other start the
// command, and waits. The benchmark of a launch prints its time beside ours. Like ours
// it is one program, and the supervisor where it has that one's name.
package main

import (
	"os"
	"strings"
	"syscall"

	_ "agent-sandbox/internal/quickstart"
)

// supervisor is sandboxinit.Path, without what that package links.
const supervisor = "/run/agent-sandbox/init"

func main() {
	if os.Args[0] == supervisor {
		supervise()
	}
	launch()
}

func launch() {
	data, err := os.ReadFile(os.Args[1])
	must(err)
	args := strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	must(err)
	// 3 to 5 are the caller's: nothing, the system call filter, bwrap's report.
	files := []uintptr{0, 1, 2, 3, 4, 5, uintptr(pair[1])}
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Env: []string{"GOMAXPROCS=1", "PATH=/usr/bin:/bin"}, Files: files})
	must(err)
	syscall.Close(pair[1])
	word := make([]byte, 1)
	_, err = syscall.Read(pair[0], word)
	must(err)
	_, err = syscall.Write(pair[0], word)
	must(err)
	var ws syscall.WaitStatus
	_, err = syscall.Wait4(pid, &ws, 0, nil)
	must(err)
	os.Exit(ws.ExitStatus())
}

const socket = 6

// supervise reports, waits for the word to start, runs the command and ends as that does.
func supervise() {
	word := []byte{'r'}
	_, err := syscall.Write(socket, word)
	must(err)
	_, err = syscall.Read(socket, word)
	must(err)
	pid, err := syscall.ForkExec(os.Args[1], os.Args[1:], &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	must(err)
	var ws syscall.WaitStatus
	_, err = syscall.Wait4(pid, &ws, 0, nil)
	must(err)
	os.Exit(ws.ExitStatus())
}

func must(err error) {
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}
