// Package attacks is what an agent that wants out of its sandbox would try: one
// script a rule, for every backend to be held against, and the home that they are
// tried in.
package attacks

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// An Attack is a bash script that runs in the project. It has won when Outside,
// run by the same user without a sandbox afterwards, exits 0; without Outside,
// when Inside itself exits 0.
//
// Without a sandbox every attack wins (TestAttacksWinWithoutASandbox): one that
// fails there too proves nothing. Those that need what an ordinary user does not
// have are marked Powerless.
type Attack struct {
	Name      string
	Inside    string
	Outside   string
	Modes     string // HOME_ACCESS modes it is tried in, all where empty
	Powerless bool
}

// In says whether the attack is tried in a HOME_ACCESS mode.
func (a Attack) In(mode string) bool {
	return a.Modes == "" || slices.Contains(strings.Fields(a.Modes), mode)
}

// Modes of HOME_ACCESS.
var Modes = []string{"restricted", "tmpwrite", "read", "write"}

//go:embed testdata/fixture.sh
var fixture string

//go:embed testdata/reset.sh
var reset string

//go:embed testdata/prelude.sh
var prelude string

//go:embed testdata/attacker.c
var attackerC string

// Secret is in the content of everything that must not be read inside.
const Secret = "TOPSECRET"

// A Scene is a user's home full of what an agent is after, another user's home,
// and an outside process.
type Scene struct {
	U       *harness.User
	Other   *harness.User
	Srv     string // folder outside the home: ro, rw
	Project string // two folders below the home
	Suite   string // the user's own copy of the binaries
	tool    string // compiled attacker.c
	env     []string
}

// NewScene makes one. It needs root.
func NewScene(t testing.TB) *Scene {
	t.Helper()
	s := &Scene{U: harness.NewUser(t), Other: harness.NewUser(t)}
	s.Project = filepath.Join(s.U.Home, "work/proj")
	s.Suite = filepath.Join(s.U.Home, "suite")
	s.U.Project = s.Project
	s.Srv = "/srv/" + s.U.Name
	if err := os.MkdirAll(s.Srv, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chown(s.Srv, s.U.UID, s.U.GID)
	tmp := "/tmp/" + s.U.Name
	t.Cleanup(func() {
		exec.Command("ipcrm", "-M", fmt.Sprint(s.U.UID)).Run()
		os.RemoveAll(s.Srv)
		for _, p := range []string{tmp, tmp + ".evil", "/dev/shm/" + s.U.Name} {
			os.RemoveAll(p)
		}
	})
	os.Chmod(s.Other.Home, 0o755)
	s.Other.Write("file.txt", Secret+"\n")

	s.tool = s.Srv + "/attacker"
	src := filepath.Join(t.TempDir(), "attacker.c")
	if err := os.WriteFile(src, []byte(attackerC), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-static", "-o", s.tool, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	os.WriteFile(s.Srv+"/prelude.sh", []byte(prelude), 0o644)
	os.WriteFile(s.Srv+"/fixture.sh", []byte(fixture), 0o644)
	os.WriteFile(s.Srv+"/reset.sh", []byte(reset), 0o644)
	s.env = []string{"T=" + s.tool, "SRV=" + s.Srv, "P=" + s.Project, "SUITE=" + s.Suite, "OTHER=" + s.Other.Home,
		"OTHERNAME=" + s.Other.Name, "ME=" + s.U.Name, "RUNTIME=" + s.U.Runtime, "AWS_SECRET_ACCESS_KEY=" + Secret}
	s.Reset(t)
	for _, sub := range []string{"agent-sandbox", "agent-sandbox-reload", "mount-repair", "mount-guard", "chaperon", "chaperon-stub", "share"} {
		dst := filepath.Join(s.Suite, sub)
		s.U.Mkdir(s.Suite)
		if out, err := exec.Command("cp", "-a", "--no-preserve=ownership", filepath.Dir(harness.Bin(t, "agent-sandbox"))+"/"+sub, dst).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprintf("%d:%d", s.U.UID, s.U.GID), s.Suite).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// With a descriptor that is worth taking.
	o := s.Command("sh", "-c", "exec 9</dev/null; exec sleep 1000")
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Process.Kill(); o.Wait() })
	s.env = append(s.env, fmt.Sprintf("OUTPID=%d", o.Process.Pid))
	// An abstract socket that somebody outside listens on.
	l := s.Command(s.tool, "listen", s.U.Name)
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Process.Kill(); l.Wait() })
	return s
}

// Command is a command of the user's in the project, with the variables that the
// scripts use.
func (s *Scene) Command(name string, args ...string) *exec.Cmd {
	c := s.U.Command(name, args...)
	c.Env = append(c.Env, s.env...)
	return c
}

// Reset makes the home anew.
func (s *Scene) Reset(t testing.TB) {
	t.Helper()
	s.U.Mkdir(s.Project)
	c := s.Command("bash", s.Srv+"/reset.sh")
	c.Dir = s.U.Home
	if r := harness.Finish(t, c); r.Code != 0 {
		t.Fatalf("reset: exit %d, %s", r.Code, r.Stderr)
	}
}

// outside runs a script as the user, without a sandbox.
func (s *Scene) outside(t testing.TB, script string) harness.Result {
	t.Helper()
	c := s.Command("bash", "-c", ". $SRV/prelude.sh\n"+script)
	c.Dir = "/"
	return harness.Finish(t, c)
}

// inherited is the number of a descriptor of a secret that the caller left open: one
// that a launcher has no use of its own for.
const inherited = 37

func (s *Scene) inherit(t testing.TB, c *exec.Cmd) {
	f, err := os.Open(filepath.Join(s.U.Home, ".ssh/id_rsa"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.ExtraFiles = make([]*os.File, inherited-2)
	c.ExtraFiles[inherited-3] = f
}
