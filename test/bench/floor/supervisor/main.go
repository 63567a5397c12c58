// Command supervisor is the least that a supervisor in Go inside the sandbox can do:
// it reports, waits for the word to start, runs the command and ends as that does.
package main

import (
	"os"
	"syscall"

	_ "agent-sandbox/internal/quickstart"
)

const socket = 6

func main() {
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
