// Package slurm tests the Slurm proxy's policy on a real Slurm of one node.
package slurm

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"agent-sandbox/test/harness"
	"agent-sandbox/test/slurm/node"
)

func TestMain(m *testing.M) {
	node.Accounting = true
	harness.Main(m, node.Stop, func() { os.RemoveAll(direct.dir) })
}

var direct struct {
	sync.Once
	dir string
	out []byte
	err error
}

// directBin builds the program that answers one request.
func directBin(t *testing.T) string {
	t.Helper()
	direct.Do(func() {
		if direct.dir, direct.err = os.MkdirTemp("/opt", "asb-direct."); direct.err != nil {
			return
		}
		os.Chmod(direct.dir, 0o755)
		c := exec.Command("go", "build", "-o", direct.dir+"/direct", "./test/slurm/direct")
		c.Dir = harness.Root()
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		direct.out, direct.err = c.CombinedOutput()
	})
	if direct.err != nil {
		t.Fatalf("%v: %s", direct.err, direct.out)
	}
	return direct.dir + "/direct"
}

// A client is a session's client of Slurm, with the policy and without a chaperon.
type client struct {
	*harness.User
	n     *node.Node
	stdin string

	// What the session is; see slurm.Session.
	id       string
	project  string
	writable []string
	readonly []string
	scope    string
	cwd      string
	env      []string

	first string // job of the test
}

func newClient(t *testing.T) *client {
	t.Helper()
	n := node.Shared(t)
	u := harness.NewUser(t)
	u.Env = append(u.Env, n.Env()...)
	t.Cleanup(func() {
		n.Root("scancel", "--full", "--signal=KILL", "--user="+u.Name)
		n.Root("scancel", "--user="+u.Name)
	})
	return &client{User: u, n: n, id: "0123abcd", project: u.Project, scope: "project", cwd: u.Project}
}

// in is the client with other standard input.
func (c *client) in(stdin string) *client {
	d := *c
	d.stdin = stdin
	return &d
}

// at is the client with another working directory.
func (c *client) at(dir string) *client {
	d := *c
	d.cwd = dir
	return &d
}

// run has the policy answer.
func (c *client) run(name string, args ...string) harness.Result {
	c.T.Helper()
	given, _ := json.Marshal(map[string]any{
		"ID": c.id, "Project": c.project, "Writable": c.writable, "Readonly": c.readonly, "Scope": c.scope,
		"Launcher": harness.Bin(c.T, "agent-sandbox"), "User": c.Name, "UID": c.UID, "Cwd": c.cwd, "Log": filepath.Join(c.Home, "policy.log"),
	})
	cmd := c.Command(directBin(c.T.(*testing.T)), append([]string{string(given), name}, args...)...)
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Stdin = strings.NewReader(c.stdin)
	cmd.Dir = c.Home
	if fi, err := os.Stat(c.cwd); err == nil && fi.IsDir() {
		cmd.Dir = c.cwd
	}
	return harness.Finish(c.T, cmd)
}

// plain runs the real command, as the user does outside.
func (c *client) plain(name string, args ...string) harness.Result {
	c.T.Helper()
	cmd := c.Command(name, args...)
	cmd.Stdin = strings.NewReader(c.stdin)
	cmd.Dir = c.cwd
	return harness.Finish(c.T, cmd)
}

var submitted = regexp.MustCompile(`\ASubmitted batch job ([0-9]+)\n\z`)

// submit submits and returns the job's number.
func (c *client) submit(args ...string) string {
	c.T.Helper()
	return c.number(c.run("sbatch", args...))
}

// submitPlain submits outside the sandbox.
func (c *client) submitPlain(args ...string) string {
	c.T.Helper()
	return c.number(c.plain("sbatch", args...))
}

func (c *client) number(r harness.Result) string {
	c.T.Helper()
	m := submitted.FindStringSubmatch(r.Stdout)
	if m == nil || r.Code != 0 {
		c.T.Fatalf("not submitted: %+v", r)
	}
	return m[1]
}

// ended waits until a job, or every element of an array, is over.
func (c *client) ended(job string) {
	c.T.Helper()
	harness.Eventually(c.T, "the end of job "+job, func() bool {
		return strings.TrimSpace(c.n.Root("squeue", "--noheader", "--jobs="+job+","+job, "--states=PENDING,RUNNING,COMPLETING,SUSPENDED,CONFIGURING")) == ""
	})
}

// read is a file of the project.
func (c *client) read(name string) string {
	data, err := os.ReadFile(filepath.Join(c.Project, name))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(data)
}

// said is what a job's launcher wrote on the node.
func (c *client) said(job string) string {
	data, _ := os.ReadFile(filepath.Join(c.Home, ".local/state/agent-sandbox/log/slurm-"+job+".log"))
	return string(data)
}
