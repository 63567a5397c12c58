package relay

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// plain is a request as a person writes it: without the number of bytes.
func plain(command string, args ...string) string {
	s := Version + " " + command + "\n"
	for _, a := range args {
		s += Line("ARG", []byte(a))
	}
	return s + Line("CWD", []byte("/x")) + Line("ANSWER", []byte(Answers+"/a")) + "END\n"
}

type got struct {
	requests []string // command and arguments of what is taken
	refused  []string
}

var now = time.Unix(1e9, 0)

func (g *got) read(s *Splitter, batch string, now time.Time) {
	s.Split([]byte(batch), now, func(r Request, err error) {
		s := strings.Join(append([]string{r.Command}, r.Args...), " ")
		if err == nil {
			g.requests = append(g.requests, s)
		} else {
			g.refused = append(g.refused, s)
		}
	})
}

func split(batches ...string) (g got) {
	var s Splitter
	for _, b := range batches {
		g.read(&s, b, now)
	}
	return g
}

func (g got) want(t *testing.T, requests ...string) {
	t.Helper()
	if !slices.Equal(g.requests, requests) {
		t.Errorf("taken %q, want %q (refused %q)", g.requests, requests, g.refused)
	}
}

func TestAWholeRequestIsTaken(t *testing.T) {
	split(plain("squeue", "-a", "", "x y\n")).want(t, "squeue -a  x y\n")
	split(plain("squeue")+plain("sinfo", "-N")).want(t, "squeue", "sinfo -N")
	// What is not known is ignored, also between the lines.
	split(strings.SplitAfter(plain("squeue", "-a", "b"), "\n")...).want(t, "squeue -a b")
	split("garbage\n\x00\xff\n"+strings.Replace(plain("squeue", "1"), "CWD", "COLOUR green\nARGS YQ==\nCWD", 1)+"ARG YQ==\nEND\n").want(t, "squeue 1")
}

func TestAGarbledRequestIsRefused(t *testing.T) {
	base := plain("squeue", "1")
	for name, batch := range map[string]string{
		"no end":             strings.TrimSuffix(base, "END\n"),
		"end cut":            strings.TrimSuffix(base, "\n"),
		"no base64":          strings.Replace(base, "ARG ", "ARG %", 1),
		"base64 in pieces":   strings.Replace(base, "ARG MQ==", "ARG M\rQ==", 1),
		"base64 not strict":  strings.Replace(base, "ARG MQ==", "ARG MR==", 1),
		"no answer":          strings.Replace(base, "ANSWER", "ANSWERS", 1),
		"two answers":        strings.Replace(base, "END", Line("ANSWER", []byte("/y"))+"END", 1),
		"empty folder":       strings.Replace(base, "END", "CWD \nEND", 1),
		"NUL in an argument": strings.Replace(base, "END", Line("ARG", []byte("a\x00b"))+"END", 1),
		"no command":         strings.Replace(base, "squeue", "", 1),
		"command with slash": strings.Replace(base, "squeue", "../squeue", 1),
		"wrong digest":       strings.Replace(base, "END", "END "+digest([]byte(base)), 1),
		"empty digest":       strings.Replace(base, "END", "END ", 1),
		"too long":           plain("squeue", strings.Repeat("x", MaxMessage)),
		"long with a digest": string(Request{Command: "squeue", Answer: Answers + "/x", Args: []string{strings.Repeat("x", MaxMessage)}}.Marshal()),
	} {
		if g := split(batch); len(g.requests) != 0 {
			t.Errorf("%s: taken: %q", name, g.requests)
		}
		// The next one is not harmed, if only it has a digest.
		if name == "end cut" {
			continue // by the empty line that the next one begins with it is whole
		}
		split(batch+string(Request{Command: "sinfo", Answer: Answers + "/b"}.Marshal())).want(t, "sinfo")
	}
}

func TestMarshalIsTheInverse(t *testing.T) {
	for _, r := range []Request{
		{Command: "squeue", Answer: Answers + "/a"},
		{Command: "sbatch", Answer: Answers + "/a", Cwd: "/a\nb\xff", Args: []string{"", "\n", "END", Version + " x"}, Script: []byte("#!/bin/sh\n\x00"), HasScript: true},
		{Command: "sbatch", Answer: Answers + "/a", Body: Answers + "/b", HasScript: true},
	} {
		n := 0
		new(Splitter).Split(r.Marshal(), now, func(back Request, err error) {
			n++
			back.text = 0
			if len(back.Script) == 0 {
				back.Script = nil
			}
			if err != nil || !reflect.DeepEqual(back, r) {
				t.Errorf("%v: %+v, want %+v", err, back, r)
			}
		})
		if n != 1 {
			t.Errorf("%d requests from one", n)
		}
	}
}

// However the lines of clients that do not write in one piece come to lie between
// each other, and wherever a read cuts them: a request is taken as one of them sent
// it, or not at all.
func TestLinesOfClientsNeverMix(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	for round := range 20000 {
		var clients [][]string
		sent := map[string]bool{}
		for c := range 2 + rnd.Intn(2) {
			args := []string{fmt.Sprintf("a%d", c), fmt.Sprintf("b%d", c), fmt.Sprintf("c%d", c)}[:rnd.Intn(4)]
			sent[strings.Join(append([]string{"squeue"}, args...), " ")] = true
			text := plain("squeue", args...)
			if rnd.Intn(2) == 0 {
				text = string(Request{Command: "squeue", Args: args, Answer: Answers + "/x"}.Marshal())
			}
			clients = append(clients, strings.SplitAfter(text, "\n"))
		}
		batches := []string{""}
		for slices.ContainsFunc(clients, func(c []string) bool { return len(c) > 0 }) {
			c := rnd.Intn(len(clients))
			n := min(len(clients[c]), 1+rnd.Intn(4))
			batches[len(batches)-1] += strings.Join(clients[c][:n], "")
			clients[c] = clients[c][n:]
			if rnd.Intn(8) == 0 {
				batches = append(batches, "")
			}
		}
		for _, r := range split(batches...).requests {
			if !sent[r] {
				t.Fatalf("round %d: %q was sent by nobody; batches %q", round, r, batches)
			}
		}
	}
}

// A client that writes in one piece is understood whatever others left unfinished.
func TestAWholeRequestIsTakenAmongHalves(t *testing.T) {
	whole := string(Request{Command: "sinfo", Args: []string{"-N"}, Answer: Answers + "/b"}.Marshal())
	for _, before := range []string{"x", Version + " squeue", Version + " squeue\nARG YQ==\n", Version + " squeue\nARG Y", strings.Repeat("\x00", 70000), plain("squeue")[:60]} {
		split(before+whole+before).want(t, "sinfo -N")
		split(before, whole).want(t, "sinfo -N")
		// Without a digest it is taken when the other has had its time.
		var s Splitter
		var g got
		g.read(&s, before, now)
		g.read(&s, "\n", now.Add(2*Doubt))
		g.read(&s, plain("squeue"), now.Add(4*Doubt))
		g.want(t, "squeue")
	}
}

func TestBodyLimits(t *testing.T) {
	read := func(text string) (Request, error, bool) {
		large := false
		r := Request{Answer: "a"}
		err := r.ReadBody(bufio.NewReaderSize(strings.NewReader(text), MaxLine), 1000, func() error { large = true; return nil })
		return r, err, large
	}
	if r, err, large := read("ARG YQ==\nSCRIPT Yg==\nSCRIPT Yw==\nEND\nARG YQ==\n"); err != nil || large || string(r.Script) != "bc" || len(r.Args) != 1 {
		t.Errorf("%+v, %v, %v", r, err, large)
	}
	if _, err, _ := read("ARG YQ==\n"); err != io.EOF {
		t.Errorf("a body without its end: %v", err)
	}
	if _, err, large := read(strings.Repeat(Line("SCRIPT", make([]byte, 600)), 3) + "END\n"); err != nil || !large {
		t.Errorf("a large body: %v, announced: %v", err, large)
	}
	for name, text := range map[string]string{
		"a long line":        "ARG " + strings.Repeat("A", MaxLine) + "\nEND\n",
		"many arguments":     strings.Repeat("ARG \n", MaxArgs+1) + "END\n",
		"long arguments":     strings.Repeat(Line("ARG", make([]byte, 30<<10)), 36) + "END\n",
		"a long script":      strings.Repeat(Line("SCRIPT", make([]byte, 30<<10)), MaxScript/(30<<10)+1) + "END\n",
		"another answer":     Line("ANSWER", []byte("/etc/passwd")) + "END\n",
		"another body":       Line("BODY", []byte("x")) + "END\n",
		"a folder too often": Line("CWD", []byte("/a")) + Line("CWD", []byte("/b")) + "END\n",
	} {
		if _, err, _ := read(text); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyNamesInTheAnswerFolder(t *testing.T) {
	for _, p := range []string{"", "/", "/etc/passwd", Answers, Answers + "/", Answers + "/.", Answers + "/..", Answers + "/../request", Answers + "/a/../../b",
		Answers + "//a", Answers + "/a/", Answers + "x/a", "a", FIFO} {
		if name, err := InAnswers(p); err == nil {
			t.Errorf("%q is taken for %q", p, name)
		}
	}
	if name, err := InAnswers(Answers + "/a/b"); err != nil || name != "a/b" {
		t.Errorf("%q, %v", name, err)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte(plain("squeue", "-a")))
	f.Add([]byte(plain("squeue")[:40] + plain("sbatch", "--wrap=x")))
	f.Add(Request{Command: "sbatch", Answer: Answers + "/a", Body: Answers + "/b", Script: []byte("#!/bin/sh\n"), HasScript: true}.Marshal())
	f.Add([]byte(Version + " reload\nEND\n"))
	f.Add([]byte(Version + " \nARG\nARG \nARG AA==\nCWD =\nEND 9999999999999999999\nEND -1\n"))
	f.Fuzz(func(t *testing.T, batch []byte) {
		heads := bytes.Count(append([]byte("\n"), batch...), []byte("\n"+Version+" "))
		n := 0
		new(Splitter).Split(batch, now, func(r Request, err error) {
			if n++; n > heads {
				t.Fatalf("more requests than first lines")
			}
			if err != nil {
				return
			}
			// What is taken is what Marshal writes of it, and it comes back.
			m := r.Marshal()
			new(Splitter).Split(m, now, func(back Request, err error) {
				if len(m) > MaxMessage {
					return
				}
				if err != nil || !reflect.DeepEqual(back, r) {
					t.Fatalf("%v: %+v, want %+v", err, back, r)
				}
			})
			if r.Answer == "" || !validCommand(r.Command) || strings.ContainsRune(strings.Join(r.Args, "")+r.Cwd+r.Answer+r.Body, 0) || len(r.Script) > MaxMessage {
				t.Fatalf("taken: %+v", r)
			}
			if _, err := InAnswers(r.Answer); err == nil && strings.Contains(r.Answer, "..") && slices.Contains(strings.Split(r.Answer, "/"), "..") {
				t.Fatalf("leaves the folder: %q", r.Answer)
			}
		})
	})
}

func FuzzBody(f *testing.F) {
	f.Add([]byte("ARG YQ==\nSCRIPT Yg==\nEND\n"))
	f.Add([]byte("CWD L3g=\nCOLOUR green\nARG \nEND"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := Request{Answer: "a", Body: "b"}
		err := r.ReadBody(bufio.NewReaderSize(bytes.NewReader(body), MaxLine), 10, func() error { return nil })
		if err == nil && (r.Answer != "a" || r.Body != "b" || len(r.Args) > MaxArgs || len(r.Script) > MaxScript) {
			t.Fatalf("taken: %+v", r)
		}
	})
}

// A request that cannot be read is answered too, where it says where to.
func TestAnOddCommandIsToldSo(t *testing.T) {
	for _, first := range []string{Version, Version + " ", Version + " SQUEUE", Version + " " + strings.Repeat("a", 33), Version + " squeue now", Version + " squeue\nARG ?"} {
		var s Splitter
		n := 0
		s.Split([]byte(first+"\nARG YQ==\nANSWER "+base64.StdEncoding.EncodeToString([]byte(Answers+"/a"))+"\nEND\n"), time.Now(), func(r Request, err error) {
			n++
			if !errors.Is(err, ErrGarbled) || r.Answer != Answers+"/a" {
				t.Errorf("%q: %v, answer to %q", first, err, r.Answer)
			}
		})
		if n != 1 {
			t.Errorf("%q: %d requests", first, n)
		}
	}
}
