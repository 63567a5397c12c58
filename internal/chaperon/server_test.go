package chaperon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/slurm"
	"agent-sandbox/internal/sys"
)

// A world is a server on real FIFOs, with a command of the test's own in place of
// Slurm's.
type world struct {
	t       testing.TB
	dir     string // the answer folder, as the host has it
	request *os.File
	stop    func()
	n       int
	mu      sync.Mutex
}

type command = func(ctx context.Context, s *slurm.Session, r *slurm.Request, stdout, stderr io.Writer, log func(level, format string, args ...any)) int

func newWorld(t testing.TB, run command) *world {
	t.Helper()
	top := t.TempDir()
	w := &world{t: t, dir: top + "/answers"}
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(top+"/request", 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(top+"/request", os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if w.request, err = os.OpenFile(top+"/request", os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	answers, err := sys.OpenPath(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	log := sessionlog.New(sessionlog.Options{StateHome: top, UID: os.Getuid(), Folder: []string{"log"}, ID: "x", Level: "debug", Keep: time.Hour, Max: 1 << 20})
	s := &Server{Answers: answers, UID: os.Getuid(), Log: log, Run: run,
		Session: func() (*slurm.Session, error) { return &slurm.Session{ID: "x", Project: top}, nil }}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, fifo) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the server does not end")
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *world) log() string {
	data, _ := os.ReadFile(filepath.Dir(w.dir) + "/log/x.log")
	return string(data)
}

// fifo makes a FIFO in the answer folder; inside is its path as a client says it.
func (w *world) fifo() (path, inside string) {
	w.t.Helper()
	w.mu.Lock()
	w.n++
	name := fmt.Sprintf("f%d", w.n)
	w.mu.Unlock()
	if err := syscall.Mkfifo(w.dir+"/"+name, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return w.dir + "/" + name, relay.Answers + "/" + name
}

// A client is one that has asked and reads its answer.
type client struct {
	w *world
	f *os.File
}

func (w *world) ask(r relay.Request) *client {
	w.t.Helper()
	path, inside := w.fifo()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { f.Close() })
	r.Answer = inside
	w.send(r.Marshal())
	return &client{w, f}
}

func (w *world) send(message []byte) {
	w.t.Helper()
	if len(message) > relay.MaxMessage {
		w.t.Fatalf("%d bytes", len(message))
	}
	if _, err := w.request.Write(message); err != nil {
		w.t.Fatal(err)
	}
}

// answer reads until EXIT, at most thirty seconds.
func (c *client) answer() (stdout, stderr, exit string) {
	c.w.t.Helper()
	late := time.AfterFunc(30*time.Second, func() { c.f.Close() })
	defer late.Stop()
	in := bufio.NewReaderSize(c.f, relay.MaxLine)
	var out, errs bytes.Buffer
	for {
		l, err := in.ReadSlice('\n')
		if err != nil {
			c.w.t.Fatalf("no answer: %v; %s", err, c.w.log())
		}
		word, value, _ := strings.Cut(strings.TrimSuffix(string(l), "\n"), " ")
		text, _ := base64.StdEncoding.DecodeString(value)
		switch word {
		case "STDOUT":
			out.Write(text)
		case "STDERR":
			errs.Write(text)
		case "EXIT":
			return out.String(), errs.String(), value
		}
	}
}

func (w *world) probe(when string) {
	w.t.Helper()
	if _, errs, exit := w.ask(relay.Request{Command: "sinfo"}).answer(); exit != "7" {
		w.t.Errorf("%s: the next client gets %q, %q", when, errs, exit)
	}
}

// echo answers with the arguments, the script and the exit status 7.
func echo(_ context.Context, _ *slurm.Session, r *slurm.Request, stdout, stderr io.Writer, _ func(level, format string, args ...any)) int {
	fmt.Fprintf(stdout, "%s %q %s", r.Command, r.Args, r.Cwd)
	stdout.Write(r.Script)
	io.WriteString(stderr, "to stderr")
	return 7
}

// sleeper runs until it is told to end; ended is closed then.
func sleeper(started, ended chan<- bool) command {
	return func(ctx context.Context, _ *slurm.Session, _ *slurm.Request, _, _ io.Writer, _ func(level, format string, args ...any)) int {
		started <- true
		<-ctx.Done()
		ended <- true
		return 1
	}
}

func TestAnAnswerIsTheCommands(t *testing.T) {
	w := newWorld(t, echo)
	out, errs, exit := w.ask(relay.Request{Command: "squeue", Args: []string{"-a", ""}, Cwd: "/x"}).answer()
	if out != `squeue ["-a" ""] /x` || errs != "to stderr" || exit != "7" {
		t.Errorf("%q %q %q", out, errs, exit)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16)
	body, inside := w.fifo()
	c := w.ask(relay.Request{Command: "sbatch", Body: inside})
	go os.WriteFile(body, []byte("SCRIPT "+base64.StdEncoding.EncodeToString([]byte("one"))+"\n"+lines(big)+"END\n"), 0)
	if out, _, exit := c.answer(); out != "sbatch [] one"+big || exit != "7" {
		t.Errorf("%d bytes, %q", len(out), exit)
	}
}

// lines is a script in lines of the protocol.
func lines(script string) string {
	var b strings.Builder
	for len(script) > 0 {
		n := min(len(script), 3000)
		b.WriteString(relay.Line("SCRIPT", []byte(script[:n])))
		script = script[n:]
	}
	return b.String()
}

// Each keeps its connection, and the next client is served.
func TestHostileClientsKeepNobodyWaiting(t *testing.T) {
	w := newWorld(t, echo)
	body := func(write func(f *os.File)) {
		path, inside := w.fifo()
		w.ask(relay.Request{Command: "sbatch", Body: inside})
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		go write(f)
	}
	for name, attack := range map[string]func(){
		"half a request":              func() { w.send([]byte(relay.Version + " squeue\nARG YQ==\n")) },
		"half a line":                 func() { w.send([]byte(relay.Version + " squeue\nARG YQ")) },
		"no newline at all":           func() { w.send(bytes.Repeat([]byte("x"), relay.MaxMessage)) },
		"NULs":                        func() { w.send(make([]byte, relay.MaxMessage)) },
		"ends without a beginning":    func() { w.send(bytes.Repeat([]byte("END\n"), relay.MaxMessage/4)) },
		"a body that never comes":     func() { body(func(f *os.File) {}) },
		"a body that stops":           func() { body(func(f *os.File) { io.WriteString(f, "ARG YQ==\nARG ") }) },
		"a body without end":          func() { body(func(f *os.File) { io.Copy(f, endless("ARG YQ==\n")) }) },
		"a line without end":          func() { body(func(f *os.File) { io.Copy(f, endless("A")) }) },
		"a body of lines to ignore":   func() { body(func(f *os.File) { io.Copy(f, endless("COLOUR\n")) }) },
		"an answer nobody reads":      func() { w.ask(relay.Request{Command: "squeue", Args: []string{strings.Repeat("x", 2000)}}) },
		"a FIFO that nobody reads":    func() { _, in := w.fifo(); w.send(relay.Request{Command: "squeue", Answer: in}.Marshal()) },
		"a body FIFO that is missing": func() { w.ask(relay.Request{Command: "sbatch", Body: relay.Answers + "/missing"}) },
	} {
		for range 20 {
			attack()
		}
		w.probe(name)
	}
}

type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e) <= len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

// A place is taken from the client that keeps us waiting, not from one that waits.
func TestAFullTableHasRoomForTheNext(t *testing.T) {
	started, ended := make(chan bool, maxRequests), make(chan bool, maxRequests)
	w := newWorld(t, sleeper(started, ended))
	running := w.ask(relay.Request{Command: "srun"})
	<-started
	var halves []*client
	for range maxRequests + 10 {
		_, inside := w.fifo()
		halves = append(halves, w.ask(relay.Request{Command: "sbatch", Body: inside}))
	}
	// Those have begun to wait by now, or will within a moment.
	for end := time.Now().Add(30 * time.Second); ; {
		_, errs, _ := w.ask(relay.Request{Command: "sh"}).answer()
		if strings.Contains(w.log(), "did not come in time") {
			t.Fatal("there was no room before others had had their time")
		}
		if strings.Contains(errs, "not a command") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no room for the next: %q", errs)
		}
		time.Sleep(50 * time.Millisecond)
	}
	select {
	case <-ended:
		t.Error("the running command was ended for another")
	default:
	}
	running.f.Close()
	if !within(ended) {
		t.Error("the command of a client that went away goes on")
	}
	_ = halves
}

func within(c <-chan bool) bool {
	select {
	case <-c:
		return true
	case <-time.After(30 * time.Second):
		return false
	}
}

func TestARequestThatDoesNotComeIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	_, inside := w.fifo()
	if _, errs, exit := w.ask(relay.Request{Command: "sbatch", Body: inside}).answer(); exit != "1" || !strings.Contains(errs, "did not come in time") {
		t.Errorf("%q, %q", errs, exit)
	}
}

// Memory has a bound: of long requests there are only so many, and short ones go on.
func TestLongRequestsAreFew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	ask := func(end string) *client {
		body, inside := w.fifo()
		f, err := os.OpenFile(body, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		c := w.ask(relay.Request{Command: "sbatch", Body: inside})
		go io.WriteString(f, lines(strings.Repeat("x", 2*smallBody))+end)
		return c
	}
	for range maxLarge {
		ask("")
	}
	w.probe("among long requests")
	ask("END\n").answer()
	if !strings.Contains(w.log(), "did not come in time") {
		t.Error("one more was served before another had had its time")
	}
}

func TestACommandEndsWithItsClient(t *testing.T) {
	started, ended := make(chan bool, 1), make(chan bool, 1)
	w := newWorld(t, sleeper(started, ended))
	c := w.ask(relay.Request{Command: "srun"})
	<-started
	c.f.Close()
	if !within(ended) {
		t.Error("it goes on")
	}
}

func TestCommandsEndWithTheSession(t *testing.T) {
	started, ended := make(chan bool, 1), make(chan bool, 1)
	w := newWorld(t, sleeper(started, ended))
	w.ask(relay.Request{Command: "srun"})
	<-started
	w.stop()
	if !within(ended) {
		t.Error("it goes on")
	}
}

// What a client can name as its answer: only a FIFO in the answer folder, that
// nothing led to.
func TestNothingButAFIFOInTheAnswerFolderIsOpened(t *testing.T) {
	w := newWorld(t, echo)
	top := filepath.Dir(w.dir)
	outside := top + "/outside"
	if err := syscall.Mkfifo(outside, 0o600); err != nil {
		t.Fatal(err)
	}
	victim, err := os.OpenFile(outside, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	file := top + "/file"
	os.WriteFile(file, []byte("untouched"), 0o600)
	os.WriteFile(w.dir+"/file", []byte("untouched"), 0o600)
	os.Mkdir(w.dir+"/folder", 0o700)
	os.Symlink(outside, w.dir+"/link")
	os.Symlink(file, w.dir+"/filelink")
	os.Symlink(top, w.dir+"/up")
	os.Symlink("/dev/tty", w.dir+"/tty")
	os.Symlink("/proc/self/fd/0", w.dir+"/magic")
	if os.Getuid() == 0 {
		// Another user's, in a folder that they share.
		path, _ := w.fifo()
		os.Rename(path, w.dir+"/foreign")
		if err := os.Chown(w.dir+"/foreign", 65534, 65534); err != nil {
			t.Fatal(err)
		}
		foreign, err := os.OpenFile(w.dir+"/foreign", os.O_RDWR|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer foreign.Close()
		w.send(relay.Request{Command: "squeue", Answer: relay.Answers + "/foreign"}.Marshal())
		w.probe("after another user's FIFO")
		if sys.Readable(int(foreign.Fd())) {
			t.Error("another user's FIFO was written")
		}
	}
	for _, name := range []string{"link", "filelink", "up/outside", "up/request", "tty", "magic", "file", "folder", ".", "..", "../outside", "folder/../../outside", "", "missing"} {
		w.send(relay.Request{Command: "squeue", Answer: relay.Answers + "/" + name}.Marshal())
	}
	w.send(relay.Request{Command: "squeue", Answer: outside}.Marshal())
	w.send(relay.Request{Command: "squeue", Answer: file}.Marshal())
	w.probe("after them")
	buf := make([]byte, 100)
	if n, _ := syscall.Read(int(victim.Fd()), buf); n > 0 {
		t.Errorf("a FIFO elsewhere was written: %q", buf[:n])
	}
	for _, f := range []string{file, w.dir + "/file"} {
		if data, _ := os.ReadFile(f); string(data) != "untouched" {
			t.Errorf("%s: %q", f, data)
		}
	}
	if n := strings.Count(w.log(), "refused"); n < 16 {
		t.Errorf("%d refusals in the log:\n%s", n, w.log())
	}
}

func TestAReloadIsIgnored(t *testing.T) {
	w := newWorld(t, echo)
	c := w.ask(relay.Request{Command: "reload", Args: []string{"--force-detach"}})
	w.probe("after it")
	if sys.Readable(int(c.f.Fd())) {
		t.Error("there is an answer")
	}
	if log := w.log(); strings.Count(log, "reload") != 1 || !strings.Contains(log, "ignored") {
		t.Errorf("log: %q", log)
	}
}

func TestUnknownCommandsAreRefused(t *testing.T) {
	w := newWorld(t, echo)
	for _, c := range []string{"sh", "sbat", "sbatchx", "chaperon", "sview"} {
		if out, errs, exit := w.ask(relay.Request{Command: c}).answer(); out != "" || exit != "1" || !strings.Contains(errs, "not a command") {
			t.Errorf("%s: %q %q %q", c, out, errs, exit)
		}
	}
}

// The log has one line an event whatever a client sends, and no script.
func TestTheLogIsOneLineAnEvent(t *testing.T) {
	w := newWorld(t, echo)
	w.ask(relay.Request{Command: "squeue", Args: []string{"a\n2026 error forged\x1b[31m"}, Cwd: "/\x00"[:1] + "\ncwd", Script: []byte("s3cret"), HasScript: true}).answer()
	w.ask(relay.Request{Command: "squeue", Args: []string{strings.Repeat("x", 2500)}}).answer()
	w.probe("after it")
	log := w.log()
	if strings.Contains(log, "s3cret") || strings.Contains(log, "\x1b") || strings.Contains(log, "\n2026 error forged") {
		t.Errorf("log: %q", log)
	}
	if n := strings.Count(log, "\n"); n != 6 {
		t.Errorf("%d lines: %q", n, log)
	}
}

// The text of a script is nowhere in the log, in whatever way it comes.
func TestTheLogHasNoScript(t *testing.T) {
	w := newWorld(t, slurm.Run)
	for _, args := range [][]string{
		{"--wrap", "s3cret"}, {"--wrap=s3cret"}, {"-J", "x", "--hold", "--wrap", "s3cret", "a"}, {"--wrap", "s3cret", "--uid=0"}, {"--uid=0", "--wrap=s3cret"}, {"--wra=s3cret"}, {"--wra", "s3cret"},
		{"-wrap", "s3cret"}, {"--Wrap", "s3cret"}, {"--wrap=a=s3cret\nb"}, {"--wrap", "--wrap=s3cret"}, {"--wrap", "#SBATCH --comment=s3cret\x01 --job-name=s3cret\x02\n"}, {"--wrap=#SBATCH --s3cret"},
		{"--wrap=#SBATCH -n s3cret"}, {"--wrap=#SBATCH \"s3cret"}, {"--wrap=#PBS s3cret\n"}, {"--wrap="}, {"--wrap"},
	} {
		w.ask(relay.Request{Command: "sbatch", Args: args, Cwd: "/"}).answer()
	}
	w.ask(relay.Request{Command: "sbatch", Cwd: "/", HasScript: true, Script: []byte("#!/bin/sh\n#SBATCH -n s3cret\n#SBATCH --s3cret\n")}).answer()
	w.stop()
	if log := w.log(); strings.Contains(log, "s3cret") || strings.Count(log, "sbatch") < 19 || !strings.Contains(log, "(script of 6 bytes)") || !strings.Contains(log, `option "--uid" is not allowed`) {
		t.Errorf("%s", log)
	}
}

// What a client says is cut, and is in a refusal's line once.
func TestTheLogCutsWords(t *testing.T) {
	w := newWorld(t, slurm.Run)
	long := strings.Repeat("\x1b", 1000)
	w.ask(relay.Request{Command: "squeue", Args: []string{"-o", "value-of-it", "--name=" + long}, Cwd: "/" + long}).answer()
	w.ask(relay.Request{Command: "squeue", Args: []string{"--partition=not one"}, Cwd: "/"}).answer()
	body, inside := w.fifo()
	c := w.ask(relay.Request{Command: "salloc", Body: inside})
	go os.WriteFile(body, []byte(strings.Repeat(relay.Line("ARG", []byte(strings.Repeat("x", 200))), 4000)+"END\n"), 0)
	c.answer()
	w.stop()
	for line := range strings.Lines(w.log()) {
		if len(line) > 6<<10 {
			t.Errorf("a line of %d bytes: %.300s", len(line), line)
		}
	}
	log := w.log()
	if !strings.Contains(log, "(1007 bytes)") || !strings.Contains(log, "(1001 bytes)") || !strings.Contains(log, "more in") || strings.Count(log, "not one") != 1 || strings.Count(log, "value-of-it") != 1 {
		t.Errorf("%s", log)
	}
}

// Refusals beyond a number are counted: a client does not turn the log over with them.
func TestAFloodOfRefusalsIsCounted(t *testing.T) {
	w := newWorld(t, func(ctx context.Context, s *slurm.Session, r *slurm.Request, stdout, stderr io.Writer, log func(level, format string, args ...any)) int {
		if len(r.Args) > 0 {
			return slurm.Run(ctx, s, r, stdout, stderr, log)
		}
		log(sessionlog.Debug, "running it")
		return 7
	})
	w.probe("before")
	const n = 3000
	for range n / 3 {
		w.ask(relay.Request{Command: "squeue", Args: []string{"--uid=" + strings.Repeat("\x1b", 2000)}}).answer()
		w.ask(relay.Request{Command: "sh"}).answer()
		w.send(relay.Request{Command: "squeue", Answer: "/etc/passwd"}.Marshal())
		w.send(relay.Request{Command: relay.Reload, Answer: relay.Answers + "/x"}.Marshal())
	}
	w.probe("after")
	w.stop()
	log := w.log()
	if size := len(log); size > 512<<10 {
		t.Errorf("%d bytes", size)
	}
	refused, ignored, more := strings.Count(log, "refused"), strings.Count(log, "ignored"), 0
	for line := range strings.Lines(log) {
		if before, ok := strings.CutSuffix(line, " more like it\n"); ok {
			var k int
			fmt.Sscan(before[strings.LastIndexByte(before, ' ')+1:], &k)
			more += k
		}
	}
	if refused < floodStart || ignored < floodStart || refused+ignored+more != n+n/3 || strings.Count(log, "exit status 7") != 2 || strings.Count(log, `sinfo in ""`) != 2 {
		t.Errorf("%d lines of refusals, %d of reloads, %d counted:\n%s", refused, ignored, more, log[max(0, len(log)-1000):])
	}
}

func TestAThousandAtOnce(t *testing.T) {
	w := newWorld(t, echo)
	var all sync.WaitGroup
	for range 1000 {
		all.Add(1)
		c := w.ask(relay.Request{Command: "squeue"})
		go func() {
			defer all.Done()
			if _, _, exit := c.answer(); exit != "7" {
				t.Errorf("exit %q", exit)
			}
		}()
	}
	all.Wait()
}
