package main

import "syscall"

// start is where the Makefile has the program begin (the linker's -E), before the Go
// runtime: it turns transparent huge pages off. Where the kernel gives them to
// everybody (Debian's does) the first touch of the runtime's heap has the kernel
// clear several of 2 MiB, which costs more than the rest of a launch. Without
// that flag the program works the same, only slower.
func start()

// hugePagesOff says whether start did it; it was not so before.
var hugePagesOff bool

// hugePagesAgain undoes it: the command inherits the setting.
func hugePagesAgain() {
	const setThpDisable = 41 // PR_SET_THP_DISABLE of prctl(2)
	if hugePagesOff {
		syscall.RawSyscall6(syscall.SYS_PRCTL, setThpDisable, 0, 0, 0, 0, 0)
		hugePagesOff = false
	}
}
