// Package node starts a real Slurm of one node for a test: munged, slurmctld and
// slurmd of the machine's packages, with a key, ports and folders of their own,
// so that several run beside each other and beside the machine's own.
package node

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

// A Node is a running Slurm.
type Node struct {
	Dir  string // below /run: slurm.conf, sockets, spools, logs
	Conf string // for SLURM_CONF
	Name string // of the node

	db      string // folder of the accounting's database, empty without
	daemons []*daemon
}

type daemon struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

var shared struct {
	sync.Once
	n   *Node
	err error
}

// Accounting, set before the first Shared, gives the node an accounting storage:
// slurmdbd on a database of its own.
var Accounting bool

// Shared is the one node of a test process, started when first asked for. Give
// Stop to harness.Main.
func Shared(t testing.TB) *Node {
	t.Helper()
	harness.Need(t, os.Getuid() == 0, "slurmd needs root")
	for _, p := range []string{"munged", "slurmctld", "slurmd", "sbatch"} {
		_, err := exec.LookPath(p)
		harness.Need(t, err == nil, p+" is not installed: run test/deps")
	}
	if Accounting {
		for _, p := range []string{"slurmdbd", "mariadbd", "mariadb-install-db"} {
			_, err := exec.LookPath(p)
			harness.Need(t, err == nil, p+" is not installed: run test/deps")
		}
	}
	shared.Do(func() { shared.n, shared.err = start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.n
}

// Stop ends the shared node.
func Stop() {
	if shared.n != nil {
		shared.n.stop()
	}
}

// Env are the variables that lead Slurm's commands to the node.
func (n *Node) Env() []string { return []string{"SLURM_CONF=" + n.Conf} }

// Root runs one of Slurm's commands as root and returns its standard output.
func (n *Node) Root(name string, args ...string) string {
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), n.Env()...)
	out, _ := c.Output()
	return string(out)
}

// start starts Slurm and waits until the node takes jobs.
func start() (n *Node, err error) {
	munge, err := user.Lookup("munge")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/run", "asb-slurm.")
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	name, _, _ = strings.Cut(name, ".")
	n = &Node{Dir: dir, Conf: filepath.Join(dir, "slurm.conf"), Name: name}
	started := n
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, started.said())
			started.stop()
		}
	}()

	// munged wants its folder and key to be its own.
	mdir := filepath.Join(dir, "munge")
	uid, _ := strconv.Atoi(munge.Uid)
	gid, _ := strconv.Atoi(munge.Gid)
	key := make([]byte, 128)
	rand.Read(key)
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
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
		"ReturnToService=2", "InactiveLimit=0", "KillWait=2",
		"SchedulerParameters=batch_sched_delay=0", "PropagateResourceLimits=NONE",
		// More CPUs than the machine has: the tests' jobs mostly wait.
		"SlurmdParameters=config_overrides",
		"NodeName=" + name + " NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN",
		"PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4",
	}
	if Accounting {
		conf = append(conf, "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1", "AccountingStoragePort="+ports[2], "AccountingStoragePass="+mdir+"/socket", "AccountingStoreFlags=job_comment")
	}
	if err := errors.Join(
		os.Chmod(dir, 0o755),
		os.Mkdir(dir+"/state", 0o755), os.Mkdir(dir+"/spool", 0o755), os.Mkdir(mdir, 0o755),
		os.WriteFile(mdir+"/key", key, 0o600),
		os.Chown(mdir, uid, gid), os.Chown(mdir+"/key", uid, gid),
		os.WriteFile(n.Conf, []byte(strings.Join(conf, "\n")+"\n"), 0o644),
	); err != nil {
		return nil, err
	}

	if err := n.daemon(&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, "munged", "--foreground", "--key-file="+mdir+"/key", "--socket="+mdir+"/socket",
		"--pid-file="+mdir+"/pid", "--log-file="+mdir+"/log", "--seed-file="+mdir+"/seed"); err != nil {
		return nil, err
	}
	if !within30s(func() bool { _, err := os.Stat(mdir + "/socket"); return err == nil }) {
		return nil, errors.New("munged makes no socket")
	}
	if Accounting {
		if err := n.accounting(mdir+"/socket", ports[2], ports[3]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(n.daemon(nil, "slurmctld", "-D"), n.daemon(nil, "slurmd", "-D", "-N", name)); err != nil {
		return nil, err
	}
	if !within30s(func() bool { return strings.TrimSpace(n.Root("sinfo", "-h", "-o", "%t")) == "idle" }) {
		return nil, errors.New("the node does not become idle")
	}
	return n, nil
}

// accounting starts a database and slurmdbd on it.
func (n *Node) accounting(munge, port, dbPort string) error {
	mysql, err := user.Lookup("mysql")
	if err != nil {
		return err
	}
	// Not below /run, which may be small.
	if n.db, err = os.MkdirTemp("/var/tmp", "asb-slurm."); err != nil {
		return err
	}
	uid, _ := strconv.Atoi(mysql.Uid)
	gid, _ := strconv.Atoi(mysql.Gid)
	if err := os.Chown(n.db, uid, gid); err != nil {
		return err
	}
	c := exec.Command("mariadb-install-db", "--no-defaults", "--user=mysql", "--datadir="+n.db+"/data", "--skip-test-db", "--auth-root-authentication-method=normal", "--innodb-log-file-size=4M")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}
	err = n.daemon(&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, "mariadbd", "--no-defaults", "--datadir="+n.db+"/data", "--socket="+n.db+"/socket",
		"--pid-file="+n.db+"/pid", "--bind-address=127.0.0.1", "--port="+dbPort, "--skip-name-resolve", "--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=0")
	if err != nil {
		return err
	}
	sql := func(text string) bool {
		return exec.Command("mariadb", "--no-defaults", "--socket="+n.db+"/socket", "--user=root", "--execute="+text).Run() == nil
	}
	if !within30s(func() bool { return sql("select 1") }) {
		return errors.New("the database does not answer")
	}
	if !sql("create user slurm@127.0.0.1 identified by 'slurm'; grant all on acct.* to slurm@127.0.0.1") {
		return errors.New("the database takes no user")
	}
	conf := strings.Join([]string{
		"DbdHost=localhost", "DbdAddr=127.0.0.1", "DbdPort=" + port, "AuthType=auth/munge", "AuthInfo=socket=" + munge, "SlurmUser=root", "StorageType=accounting_storage/mysql",
		"StorageHost=127.0.0.1", "StoragePort=" + dbPort, "StorageUser=slurm", "StoragePass=slurm", "StorageLoc=acct", "LogFile=" + n.Dir + "/slurmdbd.log", "PidFile=" + n.Dir + "/slurmdbd.pid", "",
	}, "\n")
	if err := os.WriteFile(filepath.Join(n.Dir, "slurmdbd.conf"), []byte(conf), 0o600); err != nil {
		return err
	}
	if err := n.daemon(nil, "slurmdbd", "-D"); err != nil {
		return err
	}
	var out []byte
	if !within30s(func() bool {
		c := exec.Command("sacctmgr", "--immediate", "add", "cluster", "asb")
		c.Env = append(os.Environ(), n.Env()...)
		out, err = c.CombinedOutput()
		return err == nil
	}) {
		return fmt.Errorf("slurmdbd takes no cluster: %s", out)
	}
	return nil
}

func within30s(cond func() bool) bool {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return false
}

// daemon starts a program that stop ends.
func (n *Node) daemon(cred *syscall.Credential, name string, args ...string) error {
	d := &daemon{cmd: exec.Command(name, args...)}
	d.cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, n.Env()...)
	d.cmd.Dir = n.Dir
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	d.cmd.WaitDelay = time.Second
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	n.daemons = append(n.daemons, d)
	return nil
}

func (n *Node) stop() {
	n.Root("scancel", "--full", "--signal=KILL", "--partition=main")
	for i := len(n.daemons) - 1; i >= 0; i-- {
		d := n.daemons[i]
		d.cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { d.cmd.Process.Kill() })
		d.cmd.Wait()
		kill.Stop()
	}
	n.daemons = nil
	os.RemoveAll(n.Dir)
	if n.db != "" {
		os.RemoveAll(n.db)
	}
}

// said is the ends of the logs.
func (n *Node) said() string {
	var b strings.Builder
	for _, f := range []string{"slurmctld.log", "slurmd.log", "slurmdbd.log", "munge/log"} {
		data, _ := os.ReadFile(filepath.Join(n.Dir, f))
		fmt.Fprintf(&b, "%s: %s\n", f, data[max(0, len(data)-2048):])
	}
	for _, d := range n.daemons {
		fmt.Fprintf(&b, "%s said: %s\n", d.cmd.Path, d.out.Bytes()[max(0, d.out.Len()-2048):])
	}
	return b.String()
}

// freePorts are ports nobody listens on at the moment.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}
