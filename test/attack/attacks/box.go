package attacks

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// driver takes a script a line, base64, and answers with its exit status.
const driver = `while read -r line; do
cd "$P" || exit 9
timeout 60 bash -c ". $SRV/prelude.sh
$(printf '%s\n' "$line" | base64 -d)" </dev/null >/dev/null 2>&1; echo "$?"; done`

// A Box is a running sandbox that attacks are made from.
type Box struct {
	s   *Scene
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs the driver under a command: `agent-sandbox`, with its options; without
// one, free. The caller's environment has a secret, and a descriptor of one is open.
func (s *Scene) Start(t testing.TB, env []string, launch ...string) *Box {
	t.Helper()
	launch = append(launch, "bash", "-c", driver)
	b := &Box{s: s, cmd: s.Command(launch[0], launch[1:]...)}
	b.cmd.Env = append(b.cmd.Env, env...)
	s.inherit(t, b.cmd)
	b.in, _ = b.cmd.StdinPipe()
	out, _ := b.cmd.StdoutPipe()
	b.out = bufio.NewReader(out)
	var errs strings.Builder
	b.cmd.Stderr = &errs
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.End(t) })
	if r := b.inside(t, "exit 42"); r != 42 {
		t.Fatalf("the sandbox answers %d: %s", r, errs.String())
	}
	return b
}

// End closes the sandbox and waits.
func (b *Box) End(t testing.TB) {
	b.in.Close()
	b.cmd.Wait()
}

func (b *Box) inside(t testing.TB, script string) int {
	t.Helper()
	c := exec.Command("base64", "-w0")
	c.Stdin = strings.NewReader(script)
	enc, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(b.in, "%s\n", enc); err != nil {
		return -1
	}
	var rc int
	if _, err := fmt.Fscan(b.out, &rc); err != nil {
		return -1
	}
	return rc
}

// Won makes the attack and says whether it won.
func (b *Box) Won(t testing.TB, a Attack) bool {
	t.Helper()
	rc := b.inside(t, a.Inside)
	if rc < 0 || rc == 124 {
		t.Fatalf("%s: the sandbox answers %d", a.Name, rc)
	}
	if a.Outside == "" {
		return rc == 0
	}
	return b.s.outside(t, a.Outside).Code == 0
}

// Listing is every protected file of the host with its content's digest.
func (s *Scene) Listing(t testing.TB) string {
	t.Helper()
	r := s.outside(t, `cd ~; find .ssh .aws .gnupg .bashrc .profile .vimrc .gitconfig .config .local tools suite secret.txt notes.txt vault .claude/CLAUDE.md .codex/AGENTS.md \
		"$SRV/ro" "$SRV/rw/closed" "$P"/{.env,deep,private,blocked-file,vendor,.git/hooks,.git/config,to-come.env,new,dir-to-come} -printf '%m %y %p\n' -type f -exec sha256sum {} + | sort`)
	return r.Stdout
}

// Compare fails where the listing is not what it was.
func (s *Scene) Compare(t testing.TB, before string) {
	t.Helper()
	was := strings.Split(before, "\n")
	is := strings.Split(s.Listing(t), "\n")
	seen := map[string]int{}
	for _, l := range was {
		seen[l]--
	}
	for _, l := range is {
		seen[l]++
	}
	for l, n := range seen {
		if n > 0 {
			t.Errorf("on the host after the session: %s", l)
		} else if n < 0 {
			t.Errorf("no longer on the host after the session: %s", l)
		}
	}
}
