// Package chaperontest tests the Slurm proxy's FIFO, its client program and its
// place in a launch, on real sessions of ordinary users. What of Slurm it lets
// through is test/slurm.
package chaperontest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/session"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A chaperoned session with a shell inside.
type chaperoned struct {
	*harness.Shell
	t   testing.TB
	u   *harness.User
	reg *session.Registry
	rec session.Record
}

func start(t testing.TB, config string) *chaperoned {
	t.Helper()
	u := harness.NewUser(t)
	u.Config("CHAPERON=on\nCHAPERON_LOG_LEVEL=debug\n" + config)
	return session_(u)
}

func session_(u *harness.User) *chaperoned {
	t := u.T
	t.Helper()
	c := &chaperoned{Shell: harness.NewShell(t, u.Command("agent-sandbox", "--", "bash", "--norc", "--noprofile")), t: t, u: u}
	var err error
	if c.reg, err = session.OpenRegistry(u.Runtime+"/agent-sandbox/sessions", u.UID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.reg.Close)
	if c.rec, err = c.reg.Read(c.Sh("echo $SANDBOX_SESSION")); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chaperoned) log() string {
	data, _ := os.ReadFile(c.u.Home + "/.local/state/agent-sandbox/log/chaperon/" + c.rec.ID + ".log")
	return string(data)
}

// served fails the test where the chaperon does not answer a client.
func (c *chaperoned) served(after string) {
	c.t.Helper()
	if out := c.Sh("salloc -n1; echo $?"); !strings.Contains(out, "salloc: error: salloc does not work in the sandbox") || !strings.HasSuffix(out, "\n1") {
		log := c.log()
		c.t.Errorf("after %s: %q; log:\n…%s", after, out, log[max(0, len(log)-2000):])
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestTheRequestFIFOCannotBeReplaced(t *testing.T) {
	c := start(t, "")
	for _, attack := range []string{
		"rm -f request", "mv request x", "ln -sf /etc/passwd request", "mkfifo other", "echo x >other", "mkdir request2", "chmod 600 request",
		"mount -t tmpfs x .", "rmdir .", "cd .. && mv chaperon c2", "cd .. && rm -rf chaperon", "cd .. && rm -f init stub", "echo x >../stub", "ln -sf x ../bin/sbatch", "rm -f ../bin/sbatch",
		"mv ../answers ../a2", "cat request", "exec 9<>request", "cat /proc/self/fd/9 9>request",
	} {
		if out := c.Sh("(cd " + relay.Dir + " && timeout 10 bash -c " + quote(attack) + "); echo status $?"); strings.HasSuffix(out, "status 0") || strings.HasSuffix(out, "status 124") {
			t.Errorf("%s: %q", attack, out)
		}
	}
	c.served("the attempts")
	var st syscall.Stat_t
	if err := syscall.Lstat(c.reg.ChaperonDir(c.rec.ID)+"/request", &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		t.Errorf("%v, mode %o", err, st.Mode)
	}
	if names, _ := os.ReadDir(c.reg.ChaperonDir(c.rec.ID)); len(names) != 1 {
		t.Errorf("in the folder on the host: %v", names)
	}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// From inside, with the tools that an agent has.
func TestHostileClients(t *testing.T) {
	c := start(t, "")
	c.u.Write("proj/victim", "untouched")
	c.Sh(`R=` + relay.FIFO + ` A=` + relay.Answers + `; b64() { printf %s "$1" | base64 -w0; }; req() { printf 'CHAPERON/1 %s\nARG %s\nCWD %s\nANSWER %s\nEND\n' squeue "$(b64 x)" "$(b64 /)" "$(b64 "$1")"; }`)
	for name, attack := range map[string]string{
		"half requests":            `for i in $(seq 100); do printf 'CHAPERON/1 squeue\nARG YQ==\n' >$R; done`,
		"half a line held open":    `{ printf 'CHAPERON/1 squeue\nARG YQ'; sleep 300; } >$R &`,
		"garbage":                  `head -c 3000000 /dev/urandom >$R`,
		"NULs":                     `head -c 3000000 /dev/zero >$R`,
		"one gigabyte in a line":   `head -c 1000000000 /dev/zero | tr '\0' A >$R`,
		"one gigabyte as a value":  `mkfifo $A/v $A/v.body; exec 7<>$A/v; printf 'CHAPERON/1 sbatch\nANSWER %s\nBODY %s\nEND\n' "$(b64 $A/v)" "$(b64 $A/v.body)" >$R; timeout 20 bash -c "{ printf 'SCRIPT '; head -c 1000000000 /dev/zero | tr '\0' A; } >$A/v.body"; exec 7>&-`,
		"no reader":                `mkfifo $A/n; for i in $(seq 100); do req $A/n >$R; done`,
		"a reader that stops":      `mkfifo $A/s; (exec 8<>$A/s; for i in $(seq 100); do req $A/s >$R; done; sleep 300) & sleep 0.2`,
		"a link to a file":         `ln -s $PWD/victim $A/l; req $A/l >$R`,
		"a link out of the folder": `mkfifo $PWD/p; ln -s $PWD $A/up; req $A/up/p >$R; req $A/up/victim >$R; req $PWD/victim >$R; req $A/../../../$PWD/victim >$R`,
		"no FIFO":                  `touch $A/f; mkdir $A/d; req $A/f >$R; req $A/d >$R; req $A >$R; req >$R`,
		"a reload":                 `for i in 1 2 3; do printf 'CHAPERON/1 reload\nANSWER %s\nEND\n' "$(b64 $A/r)" >$R; done; printf 'RELOAD\nreload\n' >$R`,
		"forks that write":         `for i in $(seq 100); do (for j in $(seq 20); do req $A/none >$R; done) & done; wait $(jobs -p | tail -100) 2>/dev/null; true`,
		"packets":                  `python3 -c 'import os;f=os.open("'$R'",os.O_WRONLY|os.O_DIRECT);[os.write(f,b"CHAPERON/1 squeue\nARG"*200) for i in range(50)]' 2>/dev/null; true`,
		"a small pipe":             `python3 -c 'import os,fcntl;f=os.open("'$R'",os.O_WRONLY);fcntl.fcntl(f,1031,4096)' 2>/dev/null; true`,
	} {
		c.Sh("{ " + attack + "\n} 2>/dev/null")
		c.served(name)
	}
	if data, _ := os.ReadFile(c.u.Project + "/victim"); string(data) != "untouched" {
		t.Errorf("a file outside was written: %q", data)
	}
	log := c.log()
	if n := strings.Count(log, "ignored"); n != 3 {
		t.Errorf("%d lines of ignored reloads", n)
	}
	if rec, err := c.reg.Read(c.rec.ID); err != nil || len(rec.Mounts) != len(c.rec.Mounts) {
		t.Errorf("the record changed: %v", err)
	}
	if !alive(c.rec.Chaperon.PID) {
		t.Error("the chaperon has ended")
	}
}

func TestAThousandClientsAtOnce(t *testing.T) {
	c := start(t, "")
	out := c.Sh(`cd /tmp; for i in $(seq 1000); do salloc $i >$i 2>&1 & done; wait; cat [0-9]* | sort | uniq -c | sed 's/^ *//'`)
	if !strings.HasPrefix(out, "1000 salloc: error: salloc does not work") || !strings.Contains(out, "\n1000 salloc: hint: ") || strings.Count(out, "\n") != 1 {
		t.Errorf("%s", out)
	}
	if out := c.Sh("ls " + relay.Answers); out != "" {
		t.Errorf("clients left FIFOs: %q", out)
	}
}

// A request that a person writes by hand.
func TestARequestByHand(t *testing.T) {
	c := start(t, "")
	out := c.Sh(`mkfifo ` + relay.Answers + `/me; exec 5<>` + relay.Answers + `/me
printf 'CHAPERON/1 sattach\nARG %s\nCWD %s\nANSWER %s\nEND\n' "$(echo -n 1 | base64)" "$(echo -n $PWD | base64)" "$(echo -n ` + relay.Answers + `/me | base64)" >` + relay.FIFO + `
while read -r word value; do case $word in EXIT) echo "exit $value"; break;; STDOUT|STDERR) base64 -d <<<"$value";; esac; done <&5`)
	if !strings.Contains(out, "sattach: error: sattach does not work in the sandbox") || !strings.HasSuffix(out, "exit 1") {
		t.Errorf("%q; %s", out, c.log())
	}
}

func TestTheChaperonIsOutOfReach(t *testing.T) {
	c := start(t, "")
	if out := c.Sh(fmt.Sprintf("kill -0 %d; ls /proc/%d; ls %s", c.rec.Chaperon.PID, c.rec.Chaperon.PID, filepath.Dir(c.reg.ChaperonDir(c.rec.ID)))); strings.Contains(out, "request") || strings.Count(out, "\n") < 2 {
		t.Errorf("%q", out)
	}
	// Nothing of the caller's is open in it, and it belongs to no job.
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.rec.Chaperon.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", c.rec.Chaperon.PID, fd.Name()))
		if strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	c.served("a look from inside")
	if log := c.u.Home + "/.local/state/agent-sandbox/log/chaperon"; c.Sh("cat "+log+"/*.log 2>&1 | grep -c request") != "0" {
		t.Error("the log shows inside")
	}
	var st syscall.Stat_t
	if err := syscall.Stat(c.u.Home+"/.local/state/agent-sandbox/log/chaperon/"+c.rec.ID+".log", &st); err != nil || st.Mode&0o77 != 0 {
		t.Errorf("the log: %v, mode %o", err, st.Mode)
	}
}

func TestTheChaperonEndsWithTheSession(t *testing.T) {
	for _, how := range []string{"exit", "kill the launcher"} {
		c := start(t, "")
		c.served("the start")
		if how == "exit" {
			c.Exit()
		} else {
			c.Cmd.Process.Kill()
			c.Cmd.Wait()
		}
		harness.Eventually(t, how+": the chaperon ends", func() bool { return !c.rec.Chaperon.Alive() })
		c.u.Run("agent-sandbox", "sessions")
		if _, err := os.Lstat(c.reg.ChaperonDir(c.rec.ID)); err == nil {
			t.Errorf("%s: the FIFO's folder is left", how)
		}
	}
}

// A client says so when the chaperon is gone, and does not hang.
func TestWithoutAChaperonClientsSaySo(t *testing.T) {
	c := start(t, "")
	syscall.Kill(c.rec.Chaperon.PID, syscall.SIGKILL)
	harness.Eventually(t, "it ends", func() bool { return !c.rec.Chaperon.Alive() })
	if out := c.Sh("squeue; echo $?"); !strings.Contains(out, "squeue: cannot reach Slurm: the session's chaperon has ended") || !strings.HasSuffix(out, "\n1") {
		t.Errorf("%q", out)
	}
}

func TestChaperonOffAndAuto(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("CHAPERON=off\n")
	if c := session_(u); c.rec.Chaperon.PID != 0 || c.Sh("ls -d /run/agent-sandbox/*") != "/run/agent-sandbox/init" {
		t.Errorf("off: %+v", c.rec.Chaperon)
	}
	_, err := os.Stat("/usr/bin/sbatch")
	harness.Need(t, err == nil, "Slurm is not installed: run make deps")
	u.Config("CHAPERON=auto\n")
	c := session_(u)
	if c.rec.Chaperon.PID == 0 {
		t.Error("auto: no chaperon where Slurm is installed")
	}
	c.served("a start with auto")
	plan := u.Run("agent-sandbox", "plan").Stdout
	if want := strings.Join(session.PlanLines(c.rec.Settings, c.rec.Mounts), "\n") + "\n"; plan != want {
		t.Errorf("plan and record differ:\n%s\n%s", plan, want)
	}
	if r := u.Run("agent-sandbox", "reload", c.rec.ID); r.Code != 0 || r.Stdout != "" {
		t.Errorf("a reload with nothing to do: %+v", r)
	}
	// One that does something, from a shell in which Slurm is not found as it was.
	u.Config("CHAPERON=auto\nBLOCKED_FILES+=(\"$HOME/proj/secret\")\n")
	u.Write("proj/secret", "x")
	u.Run("env", "PATH=/nowhere", filepath.Join(filepath.Dir(harness.Bin(t, "agent-sandbox")), "agent-sandbox-reload"), c.rec.ID)
	rec, err := c.reg.Read(c.rec.ID)
	if err != nil || len(rec.Mounts) == len(c.rec.Mounts) {
		t.Fatalf("no reload: %v, %d mounts", err, len(rec.Mounts))
	}
	for _, m := range c.rec.Mounts {
		if m.Source != "" && !slices.ContainsFunc(rec.Mounts, func(o mountplan.Mount) bool { return o.Marshal() == m.Marshal() }) {
			t.Errorf("lost by a reload: %s", m.Marshal())
		}
	}
}

func TestOtherBackendsHaveNoChaperon(t *testing.T) {
	u := harness.NewUser(t)
	for _, backend := range []string{"landlock", "firejail"} {
		u.Config("CHAPERON=on\n")
		if r := u.Run("agent-sandbox", "--backend", backend, "--", "echo", "ran"); r.Code != 125 || r.Stdout != "" || !strings.Contains(r.Stderr, "CHAPERON=on cannot be had with "+backend) {
			t.Errorf("%s: %+v", backend, r)
		}
		u.Config("CHAPERON=auto\n")
		r := u.Run("agent-sandbox", "--backend", backend, "--", "sh", "-c", "echo $PATH")
		if strings.Contains(r.Stdout, relay.Bin) || strings.Count(r.Stderr, "no Slurm proxy") != 1 {
			t.Errorf("%s: %+v", backend, r)
		}
	}
}

// Slurm's commands, configuration and munge's socket, by whatever path.
func TestSlurmItselfIsOutOfReach(t *testing.T) {
	_, err := os.Stat("/usr/bin/sbatch")
	harness.Need(t, err == nil, "Slurm is not installed: run make deps")
	if os.Mkdir("/run/munge", 0o755) == nil {
		defer os.Remove("/run/munge")
	}
	socket := fmt.Sprintf("/run/munge/asb-test.%d", os.Getpid())
	if err := os.WriteFile(socket, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(socket)
	for _, config := range []string{"", "READONLY_MOUNTS+=(/run/munge)\n", "EXTRA_WRITABLE_PATHS+=(/run/munge)\n", "HOME_ACCESS=write\n"} {
		c := start(t, config)
		for _, name := range relay.Commands {
			for _, path := range []string{name, "/usr/bin/" + name, "/bin/" + name} {
				if _, err := os.Stat("/usr/bin/" + name); err != nil && path != name {
					continue
				}
				if out := c.Sh("cmp $(command -v " + path + ") " + relay.Stub); out != "" {
					t.Errorf("%q: %s: %s", config, path, out)
				}
			}
		}
		if out := c.Sh("ls /etc/slurm /run/munge /var/run/munge 2>/dev/null | grep -v ^/ | tr -d '\\n'"); out != "" {
			t.Errorf("%q: %q", config, out)
		}
		if out := c.Sh("rm -f /usr/bin/sbatch; echo x >/usr/bin/sbatch; cmp /usr/bin/sbatch " + relay.Stub); !strings.HasSuffix(out, "Read-only file system") {
			t.Errorf("%q: %q", config, out)
		}
		c.Exit()
	}
}

func TestReloadTellsTheChaperon(t *testing.T) {
	c := start(t, "READONLY_MOUNTS+=(\"$HOME/extra\")\n")
	c.u.Mkdir(c.u.Home + "/extra")
	c.Exit()
	c = session_(c.u)
	c.served("the start")
	c.u.Config("CHAPERON=on\nCHAPERON_LOG_LEVEL=debug\nREADONLY_MOUNTS+=(\"$HOME/extra\")\nEXTRA_WRITABLE_PATHS=(\"$HOME/extra\")\n")
	if r := c.u.Run("agent-sandbox", "reload", c.rec.ID); r.Code != 0 || !strings.Contains(r.Stdout, "ADD") {
		t.Fatalf("%+v", r)
	}
	harness.Eventually(t, "the chaperon reads the record", func() bool { return strings.Contains(c.log(), "read the session record again") })
	c.served("a reload")
}

// The client hands over what the process inside has, and nothing is lost.
func TestTheClientAnswersForItself(t *testing.T) {
	c := start(t, "")
	if out := c.Sh(relay.Stub + " --version"); !strings.HasPrefix(out, "agent-sandbox ") {
		t.Errorf("%q", out)
	}
	if out := c.Sh("sbatch missing.sh; echo $?"); !strings.Contains(out, `sbatch: error: cannot open the batch script: open missing.sh: no such file`) || !strings.HasSuffix(out, "\n1") {
		t.Errorf("%q", out)
	}
	if out := c.Sh("head -c 5000000 /dev/zero >big; sbatch big; echo $?"); !strings.Contains(out, "cannot read the batch script") || !strings.HasSuffix(out, "\n1") {
		t.Errorf("%q", out)
	}
	// Longer than fits in one message.
	if out := c.Sh("salloc $(seq 20000); echo $?"); !strings.Contains(out, "there may be 4096 arguments") || !strings.HasSuffix(out, "\n1") {
		t.Errorf("%q", out)
	}
	if out := c.Sh("salloc $(seq 4000); echo $?"); !strings.Contains(out, "does not work in the sandbox") || !strings.HasSuffix(out, "\n1") {
		t.Errorf("%q", out)
	}
}

// An agent can put programs where the user's PATH leads.
func TestARealCommandIsNobodysOwn(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("CHAPERON=on\n")
	u.Mkdir(u.Home + "/proj/bin")
	for _, name := range []string{"sinfo", "squeue"} {
		u.Write("proj/bin/"+name, "#!/bin/sh\ntouch "+u.Home+"/escaped\necho escaped\n")
		os.Chmod(u.Home+"/proj/bin/"+name, 0o755)
	}
	r := u.Run("env", "PATH="+u.Home+"/proj/bin:/usr/bin:/bin", "timeout", "100", filepath.Join(filepath.Dir(harness.Bin(t, "agent-sandbox")), "agent-sandbox"), "--", "bash", "-c", "timeout 20 /run/agent-sandbox/bin/sinfo; timeout 20 squeue; true")
	if _, err := os.Stat(u.Home + "/escaped"); err == nil || strings.Contains(r.Stdout, "escaped") {
		t.Errorf("what an agent wrote ran outside: %+v", r)
	}
}

// What was started for a session ends with it, the real command too.
func TestARealCommandEndsWithTheSession(t *testing.T) {
	_, err := os.Stat("/usr/bin/srun")
	harness.Need(t, err == nil, "Slurm is not installed: run make deps")
	// A controller that takes a connection and never answers.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conf := t.TempDir() + "/slurm.conf"
	os.Chmod(filepath.Dir(filepath.Dir(conf)), 0o755)
	os.Chmod(filepath.Dir(conf), 0o755)
	if err := os.WriteFile(conf, fmt.Appendf(nil, "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=%d\nAuthType=auth/munge\nNodeName=localhost\nPartitionName=p Nodes=localhost\nMessageTimeout=600\n", l.Addr().(*net.TCPAddr).Port), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"client", "launcher"} {
		u := harness.NewUser(t)
		u.Config("CHAPERON=on\nCHAPERON_LOG_LEVEL=debug\n")
		u.Env = append(u.Env, "SLURM_CONF="+conf)
		c := session_(u)
		c.Sh("sinfo >/tmp/out 2>&1 & echo $! >/tmp/pid")
		children := func() int {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.rec.Chaperon.PID, c.rec.Chaperon.PID))
			n := len(strings.Fields(string(data)))
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.rec.Chaperon.PID))
			for _, f := range tasks {
				data, _ := os.ReadFile(f)
				n = max(n, len(strings.Fields(string(data))))
			}
			return n
		}
		pids := func() []byte { out, _ := exec.Command("pgrep", "-u", u.Name, "-x", "sinfo").Output(); return out }
		if !eventually(func() bool { return children() > 0 }) {
			t.Fatalf("no command runs: %s; %s", c.Sh("cat /tmp/out"), c.log())
		}
		if how == "client" {
			c.Sh("kill $(cat /tmp/pid)")
		} else {
			c.Cmd.Process.Kill()
			c.Cmd.Wait()
		}
		harness.Eventually(t, how+" gone: the command ends", func() bool { return len(pids()) == 0 })
	}
}

func eventually(cond func() bool) bool {
	for range 500 {
		if cond() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
