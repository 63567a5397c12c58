// Command launch runs a command in bwrap on a plan written by hand: what the
// tests of package bwrap and the benchmark start, without configuration and
// records.
package main

import (
	"fmt"
	"os"

	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execpath"
	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sandboxinit"
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
	bw, err := execpath.Look("bwrap", os.Getenv("PATH"))
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	cwd, _ := os.Getwd()
	spec := bwrap.Spec{
		Bwrap: bw, Init: self, Env: os.Environ(), Chdir: cwd, Command: command, PrivateIPC: true,
		NProc:   os.Getenv("NPROC"),
		DataDir: os.Getenv("DATADIR"),
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
	guard := os.Getenv("GUARD")
	var k *keeper.Process
	if guard != "" {
		if k, err = keeper.Start(guard, "00000000"); err != nil {
			p.Error(err)
			return cli.LaunchFailed
		}
		defer k.Stop()
	}
	s, err := bwrap.Start(spec)
	if err != nil {
		p.Error(err)
		return cli.LaunchFailed
	}
	if k != nil {
		err = k.Watch(s.InitPidfd)
	}
	if err == nil {
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
