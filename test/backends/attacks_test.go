package backends

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var everyMode = []string{"restricted", "tmpwrite", "read", "write"}

// waitFor waits inside until the host has done its part.
const waitFor = `touch ready; for i in $(seq 200); do [ -e done ] && break; sleep 0.05; done; [ -e done ] || exit 3; `

func hostDone(w *world) { w.Write("proj/done", "") }

var attacks = map[string]*attack{
	"secret-read": {script: `grep @SECRET@ ~/.ssh/id_rsa`, modes: everyMode},
	"secret-list": {script: `ls ~/.ssh | grep id_rsa`, modes: everyMode},
	"secret-link": {script: `ln -s ~/.ssh/id_rsa a; grep @SECRET@ a || { ln ~/.ssh/id_rsa b && grep @SECRET@ b; } || { ln ~/.ssh c && grep @SECRET@ c/id_rsa; }`, modes: everyMode},
	"secret-stat": {script: `[ "$(stat -c %s ~/.ssh/id_rsa)" -gt 0 ]`},
	"proc-root":   {script: `for p in /proc/[0-9]*; do grep @SECRET@ $p/root$HOME/.ssh/id_rsa $p/cwd/f && return 0; done; return 1`},

	"other-files":    {script: `grep @SECRET@ @SRV@/public`, modes: everyMode},
	"write-outside":  {script: `echo x >@SRV@/world/f`, modes: everyMode},
	"write-readonly": {script: `echo x >@SRV@/own/f || echo x >@SRV@/own/new || mv @SRV@/own/f @SRV@/own/g`, conf: `READONLY_MOUNTS+=(@SRV@/own)`},
	"write-config":   {script: `echo x >>~/.config/agent-sandbox/sandbox.conf`, modes: []string{"write"}},
	"make-config":    {script: `mkdir -p ~/.config/agent-sandbox && echo x >~/.config/agent-sandbox/sandbox.conf`, modes: []string{"write"}, noConf: true},
	"suite-binaries": {script: `echo x >>~/bin/agent-sandbox || mv ~/bin/agent-sandbox ~/bin/old || mv ~/bin ~/old`, modes: []string{"write"}, own: true},
	"registry":       {script: `ls @RUN@/agent-sandbox/sessions`, modes: everyMode},

	"home-readonly":    {script: `echo x >>~/.bashrc`, modes: []string{"write"}},
	"project-readonly": {script: `echo x >.git/hooks/post-commit`},
	"rename-above":     {script: `mv .git .git2 && mkdir -p .git/hooks && echo x >.git/hooks/post-commit`},

	"blocked-file-writable":   {script: `grep @SECRET@ .env`, conf: `BLOCKED_FILES+=("$_PROJECT_DIR/.env")`},
	"blocked-file-readonly":   {script: `grep @SECRET@ @SRV@/own/.env`, conf: `READONLY_MOUNTS+=(@SRV@/own); BLOCKED_FILES+=(@SRV@/own/.env)`},
	"blocked-folder-writable": {script: `grep @SECRET@ private/f`, conf: `EXTRA_BLOCKED_PATHS+=("$_PROJECT_DIR/private")`},
	"blocked-folder-readonly": {script: `grep @SECRET@ @SRV@/own/private/f`, conf: `READONLY_MOUNTS+=(@SRV@/own); EXTRA_BLOCKED_PATHS+=(@SRV@/own/private)`},
	"blocked-missing": {script: waitFor + `grep @SECRET@ .later`, conf: `BLOCKED_FILES+=("$_PROJECT_DIR/.later")`,
		host: func(w *world) { w.Write("proj/.later", secret); hostDone(w) }},

	"blocked-replaced": {script: waitFor + `sleep 0.5; grep @SECRET@ @SRV@/own/.env`, conf: `READONLY_MOUNTS+=(@SRV@/own); BLOCKED_FILES+=(@SRV@/own/.env)`,
		host: func(w *world) {
			w.Write(w.srv+"/own/.new", secret)
			os.Rename(w.srv+"/own/.new", w.srv+"/own/.env")
			hostDone(w)
		}},

	"seeded":       {script: `! echo x >>~/.gitconfig`, plain: true},
	"instructions": {script: `echo x >>~/.claude/CLAUDE.md`},

	"private-tmp":   {script: `grep @SECRET@ /tmp/asb@N@`},
	"private-ipc":   {script: `grep @SECRET@ /dev/shm/asb@N@ && python 'c=ctypes.CDLL(None); c.shmat.restype=ctypes.c_long; assert c.shmat(@SHM@,None,0)!=-1'`},
	"filter-passwd": {script: `getent passwd @OTHER@`},

	"processes":      {script: `grep -a victim-@N@ /proc/[0-9]*/cmdline | grep -av grep`},
	"environ":        {script: `for p in /proc/[0-9]*; do tr '\0' '\n' <$p/environ | grep -E 'AWS_SESSION_TOKEN|ASB_VICTIM' && return 0; done; return 1`},
	"trace-outside":  {script: `python 'assert ctypes.CDLL(None).ptrace(16,@VICTIM@,0,0)==0; os.waitpid(@VICTIM@,0x40000000)'`},
	"signal-outside": {script: `for p in /proc/[0-9]*; do :; done; kill -URG @VICTIM@ && grep -a victim-@N@ /proc/@VICTIM@/cmdline`},
	"limit-outside":  {script: `python 'import resource; resource.prlimit(@VICTIM@,resource.RLIMIT_CORE,(0,0))'`},
	"supervisor":     {script: `kill -URG $PPID`, plain: true},

	"abstract-socket": {script: `python 'socket.socket(socket.AF_UNIX).connect("\0asb@N@")'`},
	"path-socket":     {script: `python 'socket.socket(socket.AF_UNIX).connect("@RUN@/bus")'`},
	"chmod-outside":   {script: `chmod 644 ~/notes`},
	"truncate-outside": {script: `python 'os.truncate(os.path.expanduser("~/notes"),0)'`,
		after: func(_ *testing.T, w *world) bool {
			st, err := os.Stat(w.Home + "/notes")
			return err != nil || st.Size() == 0
		}},
	"terminal-other": {script: `exec 9<>@TTY@`},
	"terminal-input": {script: `python 'import errno
try: fcntl.ioctl(os.open("/dev/null",os.O_RDWR),0x5412,b"x")
except OSError as e: assert e.errno!=errno.EPERM'`},
	"device":     {script: `[ -c @DEVICE@ ] && exec 9<>@DEVICE@`},
	"namespaces": {script: `unshare -Ur true`},
	"io-uring":   {script: `python 'c=ctypes.CDLL(None,use_errno=True); c.syscall(425,0,None); assert ctypes.get_errno()!=1'`},
	"descriptor": {script: `grep @SECRET@ <&7`, outer: `exec 7<~/.ssh/id_rsa; exec $LAUNCH`},
	"network":    {script: `exec 9<>/dev/tcp/127.0.0.1/@PORT@`, conf: `NETWORK_FILTER_MODE=isolated`},

	"background": {script: `setsid sleep 5@N@ & while ! grep -aq ^sleep /proc/$!/cmdline; do sleep 0.01; done`,
		after: func(_ *testing.T, w *world) bool {
			left := w.running("sleep 5" + w.n)
			exec.Command("pkill", "-KILL", "-U", strconv.Itoa(w.UID), "-f", "^sleep 5"+w.n).Run()
			return left
		}},
	"launcher-killed": {script: `setsid sleep 6@N@ & touch ready; sleep 6@N@`, outer: `$LAUNCH & echo $! >launcher; wait`,
		host: func(w *world) {
			data, _ := os.ReadFile(w.Project + "/launcher")
			if pid, err := strconv.Atoi(string(data[:max(len(data)-1, 0)])); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		after: func(_ *testing.T, w *world) bool {
			// It may take a moment; what is there after some seconds stays.
			for range 100 {
				if !w.running("sleep 6" + w.n) {
					return false
				}
				time.Sleep(50 * time.Millisecond)
			}
			exec.Command("pkill", "-KILL", "-U", strconv.Itoa(w.UID), "-f", "^sleep 6"+w.n).Run()
			return true
		}},
	"host-mount": {script: waitFor + `echo x >@SRV@/own/mnt/f`, conf: `READONLY_MOUNTS+=(@SRV@/own)`,
		host: func(w *world) {
			exec.Command("mount", "-t", "tmpfs", "-o", "mode=777", "asb", w.srv+"/own/mnt").Run()
			hostDone(w)
		},
		after: func(_ *testing.T, w *world) bool {
			_, err := os.Stat(w.srv + "/own/mnt/f")
			exec.Command("umount", w.srv+"/own/mnt").Run()
			return err == nil
		}},
}
