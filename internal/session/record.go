// Package session has the records of running sessions: their format, where they
// lie, which of them are alive, and how a process named in one is signalled. See
// agent-sandbox-session(5).
package session

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/config"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/record"
)

// Proc names a process for longer than its pid lives: pids are reused, a pid
// with its start time is not (proc_pid_stat(5), field 22, clock ticks since boot).
type Proc struct {
	PID   int
	Start uint64
}

// Setting is one value that a reload cannot apply: a scalar, or one element of an
// array, or `sha256:…` of a value that may hold a secret.
type Setting = config.Setting

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

// MaxRecord is the size in bytes of the largest record that is read.
const MaxRecord = 1 << 20

const firstLine = "agent-sandbox-session 1"

// ErrInvalid is wrapped by every error that says that a record is not valid.
var ErrInvalid = errors.New("session record is not valid")

// Marshal returns the record as a file holds it.
func (r Record) Marshal() []byte {
	var b bytes.Buffer
	line := func(key, value string) { b.WriteString(key + " " + value + "\n") }
	text := func(key, value string) { line(key, record.Escape(value)) }
	proc := func(key string, p Proc) {
		if p != (Proc{}) {
			line(key, p.String())
		}
	}
	b.WriteString(firstLine + "\n")
	line("id", r.ID)
	text("version", r.Version)
	text("host", r.Host)
	text("boot", r.Boot)
	line("pidns", strconv.FormatUint(r.PIDNS, 10))
	line("uid", strconv.Itoa(r.UID))
	text("backend", r.Backend)
	text("project", r.Project)
	text("command", r.Command)
	line("started", r.Started.UTC().Format(time.RFC3339))
	proc("launcher", r.Launcher)
	line("sandbox", r.Sandbox.String()+" "+strconv.FormatUint(r.MountNS, 10))
	proc("guard", r.Guard)
	proc("chaperon", r.Chaperon)
	text("config-dir", r.ConfigDir)
	if r.Conf != "" {
		text("conf", r.Conf)
	}
	if r.HomeAccess != "" {
		text("home-access", r.HomeAccess)
	}
	for _, l := range PlanLines(r.Settings, r.Mounts) {
		b.WriteString(l + "\n")
	}
	for _, p := range r.Made {
		text("made", p)
	}
	b.WriteString("end\n")
	return b.Bytes()
}

// PlanLines are the `setting` and `mount` lines of a record, in its order.
func PlanLines(settings []Setting, mounts []mountplan.Mount) []string {
	var out []string
	for _, s := range settings {
		out = append(out, "setting "+s.Name+" "+record.Escape(s.Value))
	}
	for _, m := range mounts {
		out = append(out, "mount "+m.Marshal())
	}
	return out
}

// String is the form of a process in a record: pid, space, start time.
func (p Proc) String() string { return fmt.Sprintf("%d %d", p.PID, p.Start) }

// ParseProc is the strict inverse of Proc.String.
func ParseProc(s string) (Proc, error) {
	pid, start, ok := strings.Cut(s, " ")
	n, err1 := decimal(pid, 1<<31-1)
	t, err2 := decimal(start, 1<<63)
	if !ok || err1 != nil || err2 != nil || n == 0 || t == 0 {
		return Proc{}, fmt.Errorf("%w: process %q", ErrInvalid, s)
	}
	return Proc{int(n), t}, nil
}

// decimal accepts one spelling of a number.
func decimal(s string, limit uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > limit || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("%w: number %q", ErrInvalid, s)
	}
	return n, nil
}

// ValidID says whether s is a session id: 8 lower-case hex digits.
func ValidID(s string) bool { return len(s) == 8 && record.Word(s, record.Digits+"abcdef") }

// Parse reads a record and validates every field. It accepts only what Marshal
// writes: a failed parse gives no record.
func Parse(data []byte) (Record, error) {
	var r Record
	if len(data) > MaxRecord {
		return r, fmt.Errorf("%w: larger than %d bytes", ErrInvalid, MaxRecord)
	}
	p := parser{lines: strings.SplitAfter(string(data), "\n")}
	if p.next() != firstLine {
		return r, fmt.Errorf("%w: first line is not %q", ErrInvalid, firstLine)
	}
	var sandbox string
	p.field("id", func(v string) bool { r.ID = v; return ValidID(v) })
	p.text("version", &r.Version, notEmpty)
	p.text("host", &r.Host, notEmpty)
	p.text("boot", &r.Boot, notEmpty)
	p.number("pidns", 1<<63, func(n uint64) { r.PIDNS = n })
	p.number("uid", 1<<32-1, func(n uint64) { r.UID = int(n) })
	p.field("backend", func(v string) bool { r.Backend = v; return v == "bwrap" })
	p.text("project", &r.Project, mountplan.CleanAbs)
	p.text("command", &r.Command, nil)
	p.field("started", func(v string) (ok bool) {
		t, err := time.Parse(time.RFC3339, v)
		r.Started = t
		return err == nil && t.UTC().Format(time.RFC3339) == v
	})
	p.proc("launcher", &r.Launcher)
	p.field("sandbox", func(v string) bool { sandbox = v; return true })
	p.optional("guard", func() { p.proc("guard", &r.Guard) })
	p.optional("chaperon", func() { p.proc("chaperon", &r.Chaperon) })
	p.text("config-dir", &r.ConfigDir, mountplan.CleanAbs)
	p.optional("conf", func() { p.text("conf", &r.Conf, mountplan.CleanAbs) })
	p.optional("home-access", func() { p.text("home-access", &r.HomeAccess, notEmpty) })
	for p.more("setting") {
		p.field("setting", func(v string) bool {
			name, value, ok := strings.Cut(v, " ")
			s, err := record.Unescape(value)
			r.Settings = append(r.Settings, Setting{Name: name, Value: s})
			return ok && record.Variable(name) && strings.ToUpper(name) == name && err == nil
		})
	}
	for p.more("mount") {
		p.field("mount", func(v string) bool {
			m, err := mountplan.Unmarshal(v)
			r.Mounts = append(r.Mounts, m)
			return err == nil
		})
	}
	for p.more("made") {
		var path string
		p.text("made", &path, mountplan.CleanAbs)
		r.Made = append(r.Made, path)
	}
	if p.err == nil && p.next() != "end" {
		p.fail("there is no line %q where it should be", "end")
	}
	if p.err == nil && (len(p.lines) != 1 || p.lines[0] != "") {
		p.fail("there is something after the end")
	}
	if p.err == nil {
		i := strings.LastIndexByte(sandbox, ' ')
		var err error
		if r.Sandbox, err = ParseProc(sandbox[:max(i, 0)]); err != nil {
			p.err = err
		} else if r.MountNS, err = decimal(sandbox[i+1:], 1<<63); err != nil {
			p.err = err
		}
	}
	if p.err != nil {
		return Record{}, p.err
	}
	return r, nil
}

func notEmpty(s string) bool { return s != "" }

// parser takes the lines of a record in their fixed order; the first error stays.
type parser struct {
	lines []string
	n     int
	err   error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: line %d: %s", ErrInvalid, p.n, fmt.Sprintf(format, args...))
	}
}

func (p *parser) next() string {
	p.n++
	if len(p.lines) == 0 {
		p.fail("it ends too early")
		return ""
	}
	line, ok := strings.CutSuffix(p.lines[0], "\n")
	p.lines = p.lines[1:]
	if !ok {
		p.fail("it ends too early")
	}
	return line
}

func (p *parser) more(key string) bool {
	return p.err == nil && len(p.lines) > 0 && strings.HasPrefix(p.lines[0], key+" ")
}

func (p *parser) optional(key string, take func()) {
	if p.more(key) {
		take()
	}
}

func (p *parser) field(key string, set func(value string) bool) {
	if p.err != nil {
		return
	}
	value, ok := strings.CutPrefix(p.next(), key+" ")
	if !ok {
		p.fail("want %s", key)
	} else if !set(value) {
		p.fail("%s has a value that is not valid", key)
	}
}

func (p *parser) text(key string, to *string, valid func(string) bool) {
	p.field(key, func(v string) bool {
		s, err := record.Unescape(v)
		*to = s
		return err == nil && !strings.ContainsRune(s, 0) && (valid == nil || valid(s))
	})
}

func (p *parser) number(key string, limit uint64, set func(uint64)) {
	p.field(key, func(v string) bool {
		n, err := decimal(v, limit)
		set(n)
		return err == nil
	})
}

func (p *parser) proc(key string, to *Proc) {
	p.field(key, func(v string) (ok bool) {
		q, err := ParseProc(v)
		*to = q
		return err == nil
	})
}
