// Package session has the records of running sessions: their format, where they
// lie, which of them are alive, and how a process named in one is signalled. See
// agent-sandbox-session(5).
package session

import (
	"time"

	"agent-sandbox/internal/mountplan"
)

// Proc names a process for longer than its pid lives: pids are reused, a pid
// with its start time is not (proc_pid_stat(5), field 22, clock ticks since boot).
type Proc struct {
	PID   int
	Start uint64
}

// Setting is one value that a reload cannot apply: a scalar, or one element of an
// array, or `sha256:…` of a value that may hold a secret.
type Setting struct{ Name, Value string }

// Record is one session. Zero Guard and Chaperon mean that none runs.
type Record struct {
	ID         string // 8 lower-case hex digits
	Version    string
	Host       string
	Boot       string // /proc/sys/kernel/random/boot_id
	PIDNS      uint64 // inode of the pid namespace the pids are in
	UID        int
	Backend    string
	Project    string
	Command    string // display only
	Started    time.Time
	Launcher   Proc
	Sandbox    Proc   // init of the sandbox
	MountNS    uint64 // inode of its mount namespace
	Guard      Proc
	Chaperon   Proc
	ConfigDir  string
	Conf       string // SANDBOX_CONF, empty where it was not set
	HomeAccess string // HOME_ACCESS of the environment, empty where it was not set
	Settings   []Setting
	Mounts     []mountplan.Mount
	Made       []string // placeholders made on the host
}
