// Package node starts a real Slurm of one node for a test: munged, slurmctld and
// slurmd of the machine's packages, with a key, ports and folders of their own,
// so that several run beside each other and beside the machine's own.
package node

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

// A Node is a running Slurm.
type Node struct {
	T    testing.TB
	Dir  string // below /run: slurm.conf, sockets, spools, logs
	Conf string // for SLURM_CONF
	Name string // of the node
}

// Env are the variables that lead Slurm's commands to the node.
func (n *Node) Env() []string { return []string{"SLURM_CONF=" + n.Conf} }

// Start starts Slurm and waits until the node takes jobs. It ends with the test.
// More lines for slurm.conf can be given.
func Start(t testing.TB, lines ...string) *Node {
	t.Helper()
	harness.Need(t, os.Getuid() == 0, "slurmd needs root")
	for _, p := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		_, err := exec.LookPath(p)
		harness.Need(t, err == nil, p+" is not installed: run test/deps")
	}
	munge, err := user.Lookup("munge")
	harness.Need(t, err == nil, "there is no user munge: run test/deps")

	dir, err := os.MkdirTemp("/run", "asb-slurm.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, f := range []string{"slurmctld.log", "slurmd.log"} {
				data, _ := os.ReadFile(filepath.Join(dir, f))
				t.Logf("%s:\n%s", f, data[max(0, len(data)-4096):])
			}
		}
		os.RemoveAll(dir)
	})
	os.Chmod(dir, 0o755)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ = strings.Cut(name, ".")
	n := &Node{T: t, Dir: dir, Conf: filepath.Join(dir, "slurm.conf"), Name: name}

	// munged wants its folder and key to be its own.
	mdir := filepath.Join(dir, "munge")
	uid, _ := strconv.Atoi(munge.Uid)
	gid, _ := strconv.Atoi(munge.Gid)
	key := make([]byte, 128)
	rand.Read(key)
	must(t, os.Mkdir(mdir, 0o755))
	must(t, os.WriteFile(filepath.Join(mdir, "key"), key, 0o600))
	must(t, os.Chown(mdir, uid, gid))
	must(t, os.Chown(filepath.Join(mdir, "key"), uid, gid))

	ports := freePorts(t, 2)
	conf := []string{
		"ClusterName=asb", "SlurmUser=root", "SlurmdUser=root",
		"SlurmctldHost=" + name + "(127.0.0.1)",
		"SlurmctldPort=" + ports[0], "SlurmdPort=" + ports[1],
		"AuthType=auth/munge", "CredType=cred/munge", "AuthInfo=socket=" + mdir + "/socket",
		"StateSaveLocation=" + dir + "/state", "SlurmdSpoolDir=" + dir + "/spool",
		"SlurmctldPidFile=" + dir + "/slurmctld.pid", "SlurmdPidFile=" + dir + "/slurmd.pid",
		"SlurmctldLogFile=" + dir + "/slurmctld.log", "SlurmdLogFile=" + dir + "/slurmd.log",
		"ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none",
		"SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "JobAcctGatherType=jobacct_gather/none",
		"AccountingStorageType=accounting_storage/none", "ReturnToService=2", "InactiveLimit=0", "KillWait=2",
		"SchedulerParameters=defer_batch,sched_min_interval=0,batch_sched_delay=0", "PropagateResourceLimits=NONE",
		// More CPUs than the machine has: the tests' jobs mostly wait.
		"SlurmdParameters=config_overrides",
		"NodeName=" + name + " NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN",
		"PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4",
	}
	conf = append(conf, lines...)
	must(t, os.WriteFile(n.Conf, []byte(strings.Join(conf, "\n")+"\n"), 0o644))
	for _, d := range []string{"state", "spool"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}

	n.daemon(&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, "munged", "--foreground", "--key-file="+mdir+"/key", "--socket="+mdir+"/socket",
		"--pid-file="+mdir+"/pid", "--log-file="+mdir+"/log", "--seed-file="+mdir+"/seed")
	harness.Eventually(t, "munged's socket", func() bool {
		_, err := os.Stat(mdir + "/socket")
		return err == nil
	})
	n.daemon(nil, "slurmctld", "-D")
	n.daemon(nil, "slurmd", "-D", "-N", name)
	harness.Eventually(t, "an idle node", func() bool {
		return strings.TrimSpace(n.Root("sinfo", "-h", "-o", "%t")) == "idle"
	})
	return n
}

// Root runs one of Slurm's commands as root and returns its standard output.
func (n *Node) Root(name string, args ...string) string {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), n.Env()...)
	out, _ := c.Output()
	return string(out)
}

// daemon starts a program that ends with the test.
func (n *Node) daemon(cred *syscall.Credential, name string, args ...string) {
	n.T.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		n.T.Fatal(err)
	}
	c := exec.Command(path, args...)
	c.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, n.Env()...)
	c.Dir = n.Dir
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true}
	if err := c.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { c.Process.Kill() })
		c.Wait()
		kill.Stop()
		if n.T.Failed() {
			n.T.Logf("%s said: %s", name, out.Bytes()[max(0, out.Len()-2048):])
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freePorts are ports nobody listens on at the moment.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}
