package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/cli"
)

// shorten makes the time limit one that a test can wait for.
func shorten(t testing.TB) {
	was := timeLimit
	timeLimit = 500 * time.Millisecond
	t.Cleanup(func() { timeLimit = was })
}

// A file that ends, breaks or takes over the shell is an error that names it; its
// values are not used, and nothing that it did reaches this process.
func TestFileThatEndsTheShell(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		line int // 0: not known
	}{
		"exit 0":           {"PRIVATE_TMP=false\nexit 0\n", 2},
		"exit in function": {"f() {\n exit 3\n}\nf\n", 2},
		"set -e":           {"set -e\nfalse\n:\n", 2},
		"exec":             {"exec /bin/true\n", 0},
		"kill itself":      {"\nkill -9 $$\n", 0},
		"closed result":    {"exec 4>&-\n", 0},
		"noexec":           {"set -n\n", 0},
		"unbound":          {"set -u\n\necho $nope\n", 3},
		"readonly status":  {"readonly _status\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.write("sandbox.conf", c.text)
			want := h.conf("sandbox.conf")
			if c.line > 0 {
				want += ":" + strconv.Itoa(c.line)
			}
			h.fails(want, "ended the shell")
		})
	}
}

func TestFileThatFails(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		line int
		word string
	}{
		"syntax":         {"X_=1\nif true; then\nfi\n", 3, "syntax error"},
		"unclosed quote": {"\n\nx=\"a\n", 3, "unexpected EOF"},
		"return":         {":\nif true; then\n  return 7\nfi\n", 3, "returned 7"},
		"last command":   {"[[ a == a ]]\n[[ a == b ]] && PRIVATE_TMP=no\n", 2, "returned 1"},
		"not found":      {"nosuchcommand\n", 1, "command not found"},
		"bad subscript":  {"HOME_WRITABLE[-50]=x\n", 1, "bad array subscript"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.write("conf.d/a.conf", c.text)
			h.fails(h.conf("conf.d/a.conf")+":"+strconv.Itoa(c.line)+":", c.word)
		})
	}
}

// Functions, traps, options and variables that a file leaves behind do not
// change how its own or the next file's values are read.
func TestFileThatTampers(t *testing.T) {
	for name, text := range map[string]string{
		"builtins": `source() { :; }; declare() { :; }; builtin() { :; }; printf() { echo forged; }; unset() { :; }; set() { :; }
			trap() { :; }; return() { :; }; exec() { :; }; command() { :; }; eval() { :; }; exit() { :; }; local() { :; }; export() { :; }; [() { :; }`,
		"traps":        `trap 'echo trap' EXIT RETURN ERR; trap 'false' DEBUG`,
		"IFS":          `IFS=aeiou`,
		"readonly IFS": `readonly IFS=/`,
		"options":      `set -fuxvaC; shopt -s extglob nullglob nocasematch expand_aliases; alias builtin=false printf=false source=false 'unset=echo'`,
		"posix":        `set -o posix`,
		"variables":    `unset PATH HOME _status _line _CONFIG_FILE; PS4='$(kill $$)'; LC_ALL=xx; LANG=yy 2>/dev/null`,
		"stdout":       `printf '%s\0' '%00' begin 0 end 0 0 1; echo x >&1; exec >&-`,
		"stderr":       `exec 2>&-`,
		"preload":      `export LD_PRELOAD=/nonexistent.so LD_LIBRARY_PATH=/tmp BASH_ENV=/tmp/x PATH=/nonexistent`,
		"set -m":       `set -m; sleep 300 & disown`,
		"cd":           `cd /tmp; umask 0`,
		"many":         `for i in {1..2000}; do x$i() { :; }; done 2>/dev/null; for i in {1..2000}; do declare y$i=1; done`,
		"errexit":      `set -e`,
		"debug skips":  `shopt -s extdebug`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.write("sandbox.conf", "HOME_WRITABLE+=(.one)\nPRIVATE_TMP=no\n"+text+"\nreturn 0\n")
			h.write("conf.d/next.conf", "HOME_WRITABLE+=(.two 'x y')\nreturn 0\n")
			h.req.AgentsDir = emptyAgents(t)
			r := h.load()
			r.list(t, "HOME_WRITABLE", ".cache", ".one", ".two", "x y")
			if r.Settings.Bool("PRIVATE_TMP") || !r.Settings.Bool("PRIVATE_IPC") {
				t.Error("scalars were not read")
			}
			if os.Getenv("LD_PRELOAD") != "" {
				t.Error("LD_PRELOAD reached this process")
			}
		})
	}
}

// emptyAgents is a folder with profiles that add nothing.
func emptyAgents(t testing.TB) string {
	dir := t.TempDir()
	for _, n := range []string{"claude", "codex", "gemini"} {
		writeFile(t, filepath.Join(dir, n+".conf"), "command "+n+"\n")
	}
	return dir
}

// A user's file may write what it likes to the shell's answer: it can forge
// values of the user's own layer, which it may set anyhow, and never one of the
// admin's.
func TestForgedAnswerDoesNotReachTheAdminLayer(t *testing.T) {
	h := newHome(t)
	h.admin("PRIVATE_TMP=true\nBLOCKED_FILES+=(/secret)\nDENIED_WRITABLE_PATHS=(/data)\n")
	// The driver's text, nonce included, can be read by the file.
	h.write("sandbox.conf", `
nonce=$(tr '\0' '\n' </proc/$$/fd/255 | grep -ao '%[0-9a-f]\{32\}' | head -1)
[[ -n $nonce ]] || return 9
args=(0 1)
for name in `+names()+`; do
	case $name in
	PRIVATE_TMP) args+=("$name" "" 1 0 false) ;;
	*) args+=("$name" "" 0) ;;
	esac
done
printf '%s\0' "$nonce" end 0 "${args[@]}" "$nonce" names "$nonce" done >&4
sleep 300
`)
	r := h.load()
	if !r.Settings.Bool("PRIVATE_TMP") {
		t.Error("a forged PRIVATE_TMP=false was used")
	}
	r.warned(t, "PRIVATE_TMP", "weaker")
	r.list(t, "BLOCKED_FILES", "/secret")
	r.list(t, "DENIED_WRITABLE_PATHS", "/data")
	if len(r.Settings.Strings("READONLY_MOUNTS")) != 0 {
		t.Error("the forgery was not taken at all: this test attacks nothing")
	}
}

func names() string {
	var n []string
	for _, v := range Vars {
		n = append(n, v.Name)
	}
	return strings.Join(n, " ")
}

func TestJunkInTheAnswer(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "echo junk >&4\n")
	h.fails(h.conf("sandbox.conf"), "descriptor 4")
}

func TestFileThatNeverEnds(t *testing.T) {
	shorten(t)
	for name, text := range map[string]string{
		"loop":    "while :; do :; done\n",
		"sleep":   "sleep 1000\n",
		"stop":    "kill -STOP $$\n",
		"ignores": "trap '' TERM HUP INT\nwhile :; do sleep 1; done\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.write("sandbox.conf", ":\n")
			h.write("conf.d/hang.conf", text)
			h.fails(h.conf("conf.d/hang.conf"), "did not end within")
		})
	}
}

// What a file leaves running, holding our pipes, does not hold up the load and is
// gone after it: also when it left the session, has another parent, and a clean
// environment.
func TestBackgroundJobs(t *testing.T) {
	h := newHome(t)
	mark := fmt.Sprintf("31%d", os.Getpid())
	h.write("sandbox.conf", strings.ReplaceAll(`
sleep MARK &
(setsid sleep MARK >/dev/null 2>&1 4>&- &)
(setsid env -i /bin/sleep MARK &)
set -m; sleep MARK & disown
(trap '' TERM HUP; setsid bash -c 'trap "" TERM; sleep MARK; sleep MARK' &)
until [[ $(pgrep -fc '^(/bin/)?sleep MARK$') == 5 ]]; do sleep 0.01; done
PRIVATE_TMP=no
`, "MARK", mark))
	r := h.load()
	if r.Settings.Bool("PRIVATE_TMP") {
		t.Error("the value was not read")
	}
	if out, err := exec.Command("pgrep", "-af", "sleep "+mark).Output(); err == nil {
		t.Errorf("left running: %s", out)
	}
}

// A child of this process that the bash did not start is left alone.
func TestOtherChildrenAreLeftAlone(t *testing.T) {
	mine := exec.Command("sleep", "300")
	if err := mine.Start(); err != nil {
		t.Fatal(err)
	}
	defer mine.Wait()
	defer mine.Process.Kill()
	h := newHome(t)
	h.write("sandbox.conf", "sleep 300 &\n(setsid sleep 300 &)\n")
	h.load()
	if err := mine.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a child that the configuration did not start: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		fails bool
	}{
		"stdout":   {"head -c 100000000 /dev/zero\n", false},
		"stderr":   {"head -c 100000000 /dev/zero | tr '\\0' x >&2\nreturn 0\n", false},
		"result":   {"head -c 100000000 /dev/zero >&4\n", true},
		"variable": {"printf -v x '%*s' 20000000 ''; HOME_WRITABLE+=(\"$x\")\n", true},
		"endless":  {"yes >&4\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.write("sandbox.conf", c.text)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if c.fails {
				h.fails(h.conf("sandbox.conf"))
			} else {
				r := h.load()
				for _, w := range r.Warnings {
					if len(w) > 4*stderrLimit {
						t.Errorf("a warning of %d bytes", len(w))
					}
				}
			}
			runtime.ReadMemStats(&after)
			if grew := after.TotalAlloc - before.TotalAlloc; grew > 16*resultLimit {
				t.Errorf("allocated %d MiB", grew>>20)
			}
		})
	}
}

// Any bytes but NUL come through, as elements, in the project's name, and as
// values of earlier layers.
func TestBytesComeThrough(t *testing.T) {
	var all []byte
	for c := 1; c < 256; c++ {
		if c != '/' {
			all = append(all, byte(c))
		}
	}
	h := newHome(t)
	h.project = filepath.Join(h.dir, "p\n '\"\\$`"+string(all))
	h.req.ProjectDir = h.project
	admin := h.admin("EXTRA_BLOCKED_PATHS+=($'/x\\n\\xff\\001\\177 *' \"/y\" /y)\n")
	h.write("sandbox.conf", "EXTRA_WRITABLE_PATHS+=(\"$_PROJECT_DIR/a\" $'/nl\\n' '/*' '/ ' '/\\' $'/\\xfe')\n")
	r := h.load()
	r.quiet(t)
	r.list(t, "EXTRA_WRITABLE_PATHS", h.project+"/a", "/nl\n", "/*", "/ ", "/\\", "/\xfe")
	r.list(t, "EXTRA_BLOCKED_PATHS", "/x\n\xff\001\177 *", "/y")
	if got := r.Settings.Entries("EXTRA_BLOCKED_PATHS")[0].Origin; got != (Origin{"admin", admin, 1}) {
		t.Errorf("origin %v", got)
	}
	var out bytes.Buffer
	r.Settings.Print(&out)
	if n := bytes.Count(out.Bytes(), []byte("EXTRA_WRITABLE_PATHS\t")); n != 6 {
		t.Errorf("config prints %d lines for 6 entries", n)
	}
}

func TestWhatIsNoConfigurationFile(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, path string) error
		word string
	}{
		"fifo":     {func(t *testing.T, p string) error { return syscall.Mkfifo(p, 0o644) }, "not a regular file"},
		"folder":   {func(t *testing.T, p string) error { return os.Mkdir(p, 0o755) }, "is a folder"},
		"device":   {func(t *testing.T, p string) error { return os.Symlink("/dev/zero", p) }, "not a regular file"},
		"terminal": {func(t *testing.T, p string) error { return os.Symlink("/dev/tty", p) }, "not a regular file"},
		"sparse": {func(t *testing.T, p string) error {
			if err := os.WriteFile(p, nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(p, 1<<30)
		}, "larger than"},
		"nul": {func(t *testing.T, p string) error { return os.WriteFile(p, []byte("A=1\x00\n"), 0o644) }, "NUL"},
		"crlf": {func(t *testing.T, p string) error {
			return os.WriteFile(p, []byte(":\nPRIVATE_TMP=true\r\n:\r\n"), 0o644)
		}, "line 2: lines end in CR LF"},
		"bom":     {func(t *testing.T, p string) error { return os.WriteFile(p, []byte("\xef\xbb\xbf:\n"), 0o644) }, "byte order mark"},
		"loop":    {func(t *testing.T, p string) error { return os.Symlink(p, p) }, "symbolic link"},
		"dangles": {func(t *testing.T, p string) error { return os.Symlink("/nonexistent", p) }, "no such file"},
		"world":   {func(t *testing.T, p string) error { os.WriteFile(p, nil, 0o644); return os.Chmod(p, 0o666) }, "everyone can write"},
	} {
		for _, file := range []string{"sandbox.conf", "conf.d/x.conf"} {
			t.Run(name+" "+file, func(t *testing.T) {
				h := newHome(t)
				h.write("conf.d/zz.conf", ":\n")
				if err := c.make(t, h.conf(file)); err != nil {
					t.Fatal(err)
				}
				if name == "dangles" && file == "sandbox.conf" {
					// The default file need not be there; a link to nothing is no file.
					h.load()
					return
				}
				h.fails(h.conf(file), c.word)
			})
		}
	}
}

func TestLinksIntoDotfilesAreFollowed(t *testing.T) {
	h := newHome(t)
	writeFile(t, filepath.Join(h.dir, "dotfiles/sb.conf"), "PRIVATE_TMP=no\n")
	h.write("conf.d/keep", "")
	if err := os.Symlink(filepath.Join(h.dir, "dotfiles/sb.conf"), h.conf("sandbox.conf")); err != nil {
		t.Fatal(err)
	}
	if h.load().Settings.Bool("PRIVATE_TMP") {
		t.Error("the linked file was not read")
	}
}

func TestTooManyFiles(t *testing.T) {
	h := newHome(t)
	for i := range confdMax + 1 {
		h.write(fmt.Sprintf("conf.d/%03d.conf", i), "")
	}
	h.fails(h.conf("conf.d"), "256")
	os.Remove(h.conf("conf.d/000.conf"))
	if n := len(h.load().Files); n != confdMax {
		t.Errorf("%d files read", n)
	}
}

// The error tells how to mend it.
func TestHints(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "a=1\r\n")
	_, err := Load(t.Context(), h.req)
	var out bytes.Buffer
	cli.Printer{Name: "x", W: &out}.Error(err)
	if !strings.Contains(out.String(), "hint: sed -i") {
		t.Errorf("%s", out.String())
	}
}

func TestCancelled(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "sleep 1000\n")
	ctx, cancel := contextAfter(t, 100*time.Millisecond)
	defer cancel()
	if _, err := Load(ctx, h.req); !errors.Is(err, ctx.Err()) {
		t.Errorf("Load: %v", err)
	}
}
