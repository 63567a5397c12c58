// Command launch runs a command in bwrap on a plan written by hand: what the
// tests of package bwrap and the benchmark start, without configuration and
// records.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sandboxinit"
	"agent-sandbox/internal/seccomp"
)

func main() {
	if os.Args[0] == sandboxinit.Path {
		os.Exit(sandboxinit.Main())
	}
	os.Exit(run(os.Args[1:]))
}

func run(command []string) int {
	p := cli.Printer{Name: "agent-sandbox", W: os.Stderr}
	self, err := os.Executable()
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	bw, err := bwrap.Find()
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	cwd, err := os.Getwd()
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	filter, err := seccomp.Program(seccomp.Options{})
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	if os.Getenv("OLD_KERNEL") != "" {
		filter = withoutLandlock()
	}
	spec := bwrap.Spec{
		Bwrap: bw, Init: self, Env: os.Environ(), Chdir: cwd, Command: command, PrivateIPC: true,
		NProc: os.Getenv("NPROC"), Seccomp: filter,
		Mounts: []mountplan.Mount{
			{Kind: mountplan.Proc, Path: "/proc"},
			{Kind: mountplan.DevFS, Path: "/dev"},
			{Kind: mountplan.RO, Path: "/usr"},
			{Kind: mountplan.RO, Path: "/etc"},
			{Kind: mountplan.Symlink, Path: "/bin", Target: "usr/bin"},
			{Kind: mountplan.Symlink, Path: "/lib", Target: "usr/lib"},
			{Kind: mountplan.Symlink, Path: "/lib64", Target: "usr/lib64"},
			{Kind: mountplan.Tmpfs, Path: "/tmp"},
			{Kind: mountplan.Tmpfs, Path: "/run", Options: "mode=0755"},
			{Kind: mountplan.RW, Path: cwd},
		},
	}
	var k *keeper.Process
	if guard := os.Getenv("GUARD"); guard != "" {
		if k, err = keeper.Start(guard); err != nil {
			p.Error(err)
			return cli.LaunchFailed
		}
		spec.Before = k.Expect
	}
	defer func() {
		if k != nil {
			k.Kill()
			k.End()
		}
	}()
	s, err := bwrap.Start(spec, nil)
	var interrupted *bwrap.Interrupted
	if errors.As(err, &interrupted) {
		return interrupted.Status()
	}
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	if k != nil {
		if err = k.Watch(s.InitPidfd); err == nil {
			err = k.Watching()
		}
	}
	if err == nil {
		bwrap.Ignore()
		err = s.Go()
	}
	if err != nil {
		p.Error(err)
		s.Kill()
		s.Wait()
		return cli.LaunchFailed
	}
	if os.Getenv("SHOW") != "" {
		fmt.Fprintln(os.Stderr, s.InitPID, s.Supervisor, s.MountNS)
	}
	return s.Wait()
}

// withoutLandlock is a filter that answers the Landlock calls with ENOSYS, as a
// kernel before 5.13 does, and allows everything else.
func withoutLandlock() []byte {
	const load, jumpIfBelow, ret, allow, enosys = 0x20, 0x35, 0x06, 0x7fff0000, 0x00050000 | 38
	var out []byte
	for _, i := range []struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}{
		{load, 0, 0, 0},          // the number of the call
		{jumpIfBelow, 0, 2, 444}, // landlock_create_ruleset and the two after it
		{jumpIfBelow, 1, 0, 447},
		{ret, 0, 0, enosys},
		{ret, 0, 0, allow},
	} {
		out = binary.LittleEndian.AppendUint16(out, i.code)
		out = append(out, i.jt, i.jf)
		out = binary.LittleEndian.AppendUint32(out, i.k)
	}
	return out
}
