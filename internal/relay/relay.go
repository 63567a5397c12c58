// Package relay has what the Slurm proxy's two sides share: the line protocol
// CHAPERON/1 (chaperon(8)), where its files lie in a session, and the client's side
// of it. The other side is package chaperon.
//
// A request goes through one FIFO that all clients of a session write to. The
// kernel keeps a write of at most PIPE_BUF bytes together (pipe(7)), and nothing
// longer, so that is the size of a request there; what is longer goes through a
// FIFO of the client's own, which the request names.
package relay

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Where things lie in a session.
const (
	Dir     = "/run/agent-sandbox/chaperon" // the folder of the session that holds the request FIFO, read-only
	FIFO    = Dir + "/" + Name              // the request FIFO
	Answers = "/run/agent-sandbox/answers"  // where clients make their FIFOs
	Stub    = "/run/agent-sandbox/stub"     // the client program
	Bin     = "/run/agent-sandbox/bin"      // links to it, first in PATH
)

// Name is that of the request FIFO in its folder.
const Name = "request"

// Version is the first word of a request and of an answer.
const Version = "CHAPERON/1"

// Reload is the one command that is not refused: it is ignored, since a reload
// is never asked for from inside.
const Reload = "reload"

// Limits of what a client may send.
const (
	MaxMessage = 4096    // bytes of a request in the request FIFO: PIPE_BUF
	MaxArgs    = 4096    // arguments
	MaxText    = 1 << 20 // bytes of all arguments
	MaxPath    = 4096    // bytes of CWD, ANSWER and BODY
	MaxScript  = 4 << 20 // bytes of a script: Slurm's own limit, max_script_size in slurm.conf(5)
	MaxLine    = 64 << 10
)

// Commands are those of Slurm that a client has names for. Which of them do what they
// do outside is package slurm's to say.
var Commands = []string{
	"sbatch", "srun", "squeue", "scancel", "scontrol", "sacct", "sinfo", "sstat", "sprio", "sshare", "sdiag",
	"salloc", "sattach", "sbcast", "scrontab", "scrun", "strigger", "sreport", "sacctmgr",
}

// A Request is what a client asks for.
type Request struct {
	Command   string
	Args      []string
	Cwd       string
	Answer    string // FIFO that the answer is written to
	Body      string // FIFO that has the rest of the lines, empty where there is none
	Script    []byte
	HasScript bool

	text int // bytes of Args
}

// Errors of a request that does not hold to the protocol.
var (
	ErrLong    = errors.New("the request is too long")
	ErrPieces  = errors.New("the request did not arrive in one piece")
	ErrGarbled = errors.New("the request is garbled")
)

// line takes a line between the first and END, without its newline. A line that is
// not known is no error.
func (r *Request) line(l []byte) error {
	word, rest, _ := bytes.Cut(l, []byte(" "))
	switch string(word) {
	case "ARG", "CWD", "ANSWER", "BODY", "SCRIPT":
	default:
		return nil
	}
	if len(rest) > MaxLine {
		return ErrLong
	}
	if bytes.IndexByte(rest, '\r') >= 0 {
		return ErrGarbled // the decoder would skip it
	}
	value := make([]byte, base64.StdEncoding.DecodedLen(len(rest)))
	n, err := base64.StdEncoding.Strict().Decode(value, rest)
	if err != nil {
		return ErrGarbled
	}
	value = value[:n]
	if string(word) == "SCRIPT" {
		r.HasScript = true
		r.Script = append(r.Script, value...)
		if len(r.Script) > MaxScript {
			return fmt.Errorf("%w: a script may have %d bytes", ErrLong, MaxScript)
		}
		return nil
	}
	if bytes.IndexByte(value, 0) >= 0 {
		return ErrGarbled // no argument and no path has one
	}
	if string(word) == "ARG" {
		r.Args = append(r.Args, string(value))
		if r.text += n; len(r.Args) > MaxArgs || r.text > MaxText {
			return fmt.Errorf("%w: there may be %d arguments of %d bytes together", ErrLong, MaxArgs, MaxText)
		}
		return nil
	}
	to := map[string]*string{"CWD": &r.Cwd, "ANSWER": &r.Answer, "BODY": &r.Body}[string(word)]
	switch {
	case *to != "" || n == 0:
		return ErrGarbled
	case n > MaxPath:
		return ErrLong
	}
	*to = string(value)
	return nil
}

// header reads `CHAPERON/1 COMMAND`.
func header(l []byte) (command string, ok bool) {
	version, command, _ := strings.Cut(string(l[:min(len(l), 100)]), " ")
	return command, version == Version
}

// validCommand says whether a command is of the form of one.
func validCommand(s string) bool {
	return s != "" && len(s) <= 32 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

// A Splitter finds the requests in what is read from the request FIFO.
//
// Clients that do not write in one piece may come to lie between each other. No line
// is taken for one of another's request: an END with the digest of what stands before
// it does not fit then, and a request without a digest is taken only where no other
// begins before its end, nor did within the time of Doubt.
type Splitter struct {
	r     Request
	err   error
	open  bool
	text  []byte    // lines of r
	since time.Time // of the first line of r
	mixed time.Time // when a request last began inside another
}

// Doubt is how long a request that was begun and not ended makes others suspect that
// have no digest. Who writes line by line is done long before.
const Doubt = time.Second

// Split takes what one read(2) gave and hands each request to take, in their order.
// One that does not hold to the protocol comes with an error and what was read of it.
// A line without its end is dropped: the kernel cuts none of a request in one piece.
func (s *Splitter) Split(batch []byte, now time.Time, take func(Request, error)) {
	done := func(e error) {
		if s.err == nil {
			s.err = e
		}
		take(s.r, s.err)
		*s = Splitter{mixed: s.mixed}
	}
	if s.open && now.Sub(s.since) > Doubt {
		s.mixed = now
		done(ErrPieces)
	}
	for {
		l, rest, whole := bytes.Cut(batch, []byte("\n"))
		if !whole {
			return
		}
		batch = rest
		if command, ok := header(l); ok {
			if s.open {
				s.mixed = now
				done(ErrPieces)
			}
			s.r, s.open, s.since = Request{Command: command}, true, now
			if !validCommand(command) {
				s.r.Command, s.err = "", ErrGarbled
			}
		}
		if !s.open {
			continue
		}
		if sum, end := ending(l); end {
			switch {
			case sum == "" && (now.Sub(s.mixed) < Doubt || len(s.text) > MaxMessage):
				done(ErrPieces)
			case sum != "" && sum != digest(s.text):
				done(ErrPieces)
			case s.r.Answer == "":
				done(ErrGarbled)
			default:
				done(nil)
			}
			continue
		}
		// After an error too: who has asked is to be told of it.
		err := ErrLong
		if len(s.text)+len(l) < MaxMessage {
			s.text = append(append(s.text, l...), '\n')
			err = s.r.line(l)
		}
		if s.err == nil {
			s.err = err
		}
	}
}

// ending reads `END` or `END DIGEST`.
func ending(l []byte) (sum string, ok bool) {
	word, sum, summed := strings.Cut(string(l[:min(len(l), 100)]), " ")
	if summed && sum == "" {
		sum = "none"
	}
	return sum, word == "END"
}

// digest is that of the lines of a request before its END.
func digest(lines []byte) string {
	sum := sha256.Sum256(lines)
	return hex.EncodeToString(sum[:])
}

// A LineReader gives lines with their newline; bufio.Reader is one.
type LineReader interface {
	ReadSlice(delim byte) ([]byte, error)
}

// ReadBody reads the rest of a request, up to its END, from the client's own FIFO.
// The reader's buffer bounds the length of a line. large is called once, before more
// than small bytes of it are held.
func (r *Request) ReadBody(from LineReader, small int, large func() error) error {
	held := 0
	for {
		l, err := from.ReadSlice('\n')
		if err != nil {
			return err
		}
		l = l[:len(l)-1]
		if string(l) == "END" {
			return nil
		}
		if before := held; before <= small {
			if held += len(l); held > small {
				if err := large(); err != nil {
					return err
				}
			}
		}
		answer, body := r.Answer, r.Body
		if err := r.line(l); err != nil {
			return err
		}
		if r.Answer != answer || r.Body != body {
			return ErrGarbled
		}
	}
}

// InAnswers gives the name, below the answer folder, of a FIFO that a client chose.
func InAnswers(p string) (name string, err error) {
	name, ok := strings.CutPrefix(p, Answers+"/")
	if !ok || !fs.ValidPath(name) || name == "." {
		return "", fmt.Errorf("it is not in %s", Answers)
	}
	return name, nil
}

// Line is a line of the protocol: a word and a value.
func Line(word string, value []byte) string {
	return word + " " + base64.StdEncoding.EncodeToString(value) + "\n"
}

// scriptPiece is how many bytes of a script go in one line.
const scriptPiece = 3 << 10

// lines is the request without its first line and END.
func (r Request) lines() []byte {
	var b bytes.Buffer
	line := func(word string, value []byte) { b.WriteString(Line(word, value)) }
	for _, f := range []struct{ word, value string }{{"ANSWER", r.Answer}, {"BODY", r.Body}, {"CWD", r.Cwd}} {
		if f.value != "" {
			line(f.word, []byte(f.value))
		}
	}
	for _, a := range r.Args {
		line("ARG", []byte(a))
	}
	if r.HasScript {
		for rest := r.Script; ; {
			n := min(len(rest), scriptPiece)
			line("SCRIPT", rest[:n])
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
	}
	return b.Bytes()
}

// Marshal is the request as it is written to the request FIFO. It begins with an
// empty line, so that nothing another client left unfinished is taken for its
// beginning.
func (r Request) Marshal() []byte {
	lines := fmt.Appendf(nil, "%s %s\n%s", Version, r.Command, r.lines())
	return fmt.Appendf(nil, "\n%sEND %s\n", lines, digest(lines))
}
