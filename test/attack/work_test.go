package attack

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/test/attack/attacks"
	"agent-sandbox/test/harness"
)

// TestWork: what people do in a project works inside, in every mode.
func TestWork(t *testing.T) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	env := "PATH=" + strings.TrimSpace(string(goroot)) + "/bin:/usr/local/bin:/usr/bin:/bin"
	u := harness.NewUser(t)
	sh(t, u, gitUser+`cd ~/proj; git init -q; echo x >f; git add f; git commit -qm first; git tag base
mkdir pkg; echo '{"name":"left","version":"1.0.0","main":"i.js"}' >pkg/package.json; echo 'module.exports=7' >pkg/i.js; tar czf left.tgz --transform s,^pkg,package, pkg
mkdir -p ~/.cache hello; printf 'module hello\n' >hello/go.mod; printf 'package hello\n\nfunc Hello() string { return "hello" }\n' >hello/hello.go
printf 'all: a.out\n\t./a.out\na.out: a.c\n\tgcc -o $@ $<\n' >Makefile; printf '#include <stdio.h>\nint main(void){puts("made");return 0;}\n' >a.c`)
	for _, job := range []struct{ name, script, want string }{
		{"git", `b=b-$HOME_ACCESS; git checkout -q -b $b && echo y >>f && git commit -qam second && echo z >f && git stash -q && git stash pop -q && git checkout -q f && git checkout -q main && echo w >g && git add g && git commit -qm third && git rebase -q $b && git log --oneline | wc -l && git gc -q && git merge -q $b && git reset -q --hard base`, "3"},
		{"go", `cd hello && GOFLAGS=-mod=mod GOTOOLCHAIN=local go build -o h.a . && grep -ac Hello h.a && ls -d ~/.cache/go-build`, "3\n" + u.Home + "/.cache/go-build"},
		{"make and gcc", `make -s && rm -f a.out`, "made"},
		{"npm", `export npm_config_update_notifier=false; rm -rf n && mkdir n && cd n && npm init -y >/dev/null 2>&1 && npm install --no-audit --no-fund --offline ../left.tgz >/dev/null 2>&1 && node -e 'console.log(require("left"))'`, "7"},
		{"python", `rm -rf v && /usr/bin/python3 -m venv --without-pip v && v/bin/python -c 'import sys, tempfile, multiprocessing; tempfile.mkdtemp(); multiprocessing.Lock(); print(sys.prefix != sys.base_prefix)'`, "True"},
		{"editors and tools", `echo a >t && sed -i s/a/b/ t && cp t t2 && mv t2 t && ln -s t l && tar cf t.tar t && patch -s t <<<$'--- t\n+++ t\n@@ -1 +1 @@\n-b\n+c' && cat t && find . -name t.tar -delete`, "c"},
		{"network on the loopback", `/usr/bin/python3 -c 'import socket; s=socket.create_server(("127.0.0.1",0)); c=socket.create_connection(s.getsockname()); print("met")'`, "met"},
		{"processes", `bash -c 'sleep 100 & kill $!; wait $! ; echo $?'; ps -e >/dev/null`, "143"},
	} {
		if strings.HasPrefix(job.name, "npm") {
			_, err := exec.LookPath("npm")
			harness.Need(t, err == nil, "npm")
		}
		for _, mode := range attacks.Modes {
			if mode != "tmpwrite" && job.name != "git" && job.name != "go" {
				continue
			}
			t.Run(job.name+" "+mode, func(t *testing.T) {
				want(t, "output", inside(t, u, job.script, env, "HOME_ACCESS="+mode), job.want)
			})
		}
	}
}

// TestCalls: in a session the calls that make, enter and change namespaces and
// mounts, old and new, io_uring, the keyrings and their like are refused. What the
// program tries, and that it would have another answer without the filter, is
// tested in internal/seccomp.
func TestCalls(t *testing.T) {
	u := harness.NewUser(t)
	tool := compile(t, "../../internal/seccomp/testdata/attack.c")
	u.Config("READONLY_MOUNTS+=(" + tool + ")\n")
	got := map[string]int{}
	for line := range strings.Lines(inside(t, u, tool) + "\n") {
		var name string
		var e int
		if _, err := fmt.Sscanf(line, "%s %d\n", &name, &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got[name] = e
	}
	for _, name := range strings.Fields(`mount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr setns
		unshare-user unshare-mount unshare-mount-more clone-user clone-mount clone-user-high io_uring_setup io_uring_enter io_uring_register
		tiocsti tiocsti-high tioclinux tioclinux-high add_key request_key keyctl userfaultfd bpf perf_event_open kexec_load reboot
		socket-packet socket-alg socket-vsock personality-exec`) {
		if e, ok := got[name]; !ok || syscall.Errno(e) != syscall.EPERM {
			t.Errorf("%s: %v, want %v", name, syscall.Errno(e), syscall.EPERM)
		}
	}
	if e := syscall.Errno(got["clone3-user"]); e != syscall.ENOSYS {
		t.Errorf("clone3: %v", e)
	}
}

// TestFileBecomesAFolder: what is to be masked lies below what is a file when the
// session begins.
func TestFileBecomesAFolder(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(u.Project+"/conf", "a file\n")
	u.Config("BLOCKED_FILES+=(~/proj/conf/key)\n")
	l := start(t, u, "rm conf; mkdir conf; echo ready; read -r _; cat conf/key")
	harness.Eventually(t, "the folder", func() bool { st, err := os.Stat(u.Project + "/conf"); return err == nil && st.IsDir() })
	u.Write(u.Project+"/conf/key", "TOPSECRET\n")
	harness.Eventually(t, "the mask", func() bool {
		info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", l.rec.Sandbox.PID))
		return strings.Contains(string(info), "/conf/key ")
	})
	fmt.Fprintln(l.in)
	l.end()
	if strings.Contains(l.out.String(), "TOPSECRET") {
		t.Errorf("the file shows: %s", l.out.String())
	}
}

// TestNothingIsShownOfALaterFile: a file to be masked that is not there and that
// the launcher cannot hold a place for (a folder of someone else's) is masked when
// it comes, or nothing is launched.
func TestNothingIsShownOfALaterFile(t *testing.T) {
	u := harness.NewUser(t)
	top := "/srv/" + u.Name
	if err := os.Mkdir(top, 0o755); err != nil { // root's
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	u.Config(fmt.Sprintf("READONLY_MOUNTS+=(%[1]s)\nBLOCKED_FILES+=(%[1]s/key)\n", top))
	for _, guard := range []string{"repair", "warn", "off"} {
		os.Remove(top + "/key")
		c := u.Command("agent-sandbox", "bash", "-c", "read -r _; cat "+top+"/key")
		c.Env = append(c.Env, "MOUNT_GUARD="+guard)
		in, _ := c.StdinPipe()
		var out, errs strings.Builder
		c.Stdout, c.Stderr = &out, &errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "a session or a refusal", func() bool { return len(records(u)) > 0 || errs.Len() > 0 })
		if err := os.WriteFile(top+"/key", []byte("TOPSECRET\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		masked := func() bool {
			data, err := os.ReadFile(records(u)[0])
			if err != nil {
				return true
			}
			var pid int
			for line := range strings.Lines(string(data)) {
				fmt.Sscanf(line, "sandbox %d", &pid)
			}
			info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
			return strings.Contains(string(info), " "+top+"/key ")
		}
		if len(records(u)) > 0 && guard == "repair" {
			harness.Eventually(t, "the mask", masked)
		}
		fmt.Fprintln(in)
		in.Close()
		c.Wait()
		if strings.Contains(out.String(), "TOPSECRET") {
			t.Errorf("MOUNT_GUARD=%s: the file shows: %s", guard, errs.String())
		}
	}
}
