package relay

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"agent-sandbox/internal/sys"
)

// patience is how long a client waits for the first line of its answer: a chaperon
// that is there sends it at once.
const patience = 60 * time.Second

// Errors of a client.
var (
	ErrGone     = errors.New("the session's chaperon has ended")
	ErrNoAnswer = errors.New("the session's chaperon does not answer")
	ErrCut      = errors.New("the session's chaperon ended before the command did")
)

// Do asks the chaperon of the session that this process is in, copies what the
// command outside prints, and returns its exit status.
func Do(r Request, stdout, stderr io.Writer) (exit int, err error) {
	r.Answer = Answers + "/" + sys.RandomHex(8)
	remove := func() { os.Remove(r.Answer) }
	defer func() { remove() }()
	fd, err := makeFIFO(r.Answer)
	if err != nil {
		return 0, err
	}

	message := r.Marshal()
	if len(message) > MaxMessage {
		short := Request{Command: r.Command, Answer: r.Answer, Body: r.Answer + ".body"}
		message = short.Marshal()
		if err := syscall.Mkfifo(short.Body, 0o600); err != nil {
			return 0, fmt.Errorf("cannot make a FIFO: %w", err)
		}
		remove = func() { os.Remove(short.Body); os.Remove(r.Answer) }
		body, err := openFIFO(short.Body, syscall.O_RDWR)
		if err != nil {
			os.Remove(short.Body)
			return 0, err
		}
		go sendBody(body, r)
	}
	if err := send(message); err != nil {
		return 0, err
	}
	// A FIFO that no one has opened for writing yet reads as ended; poll(2) waits.
	ready, _, err := sys.WaitChange([]int{fd}, -1, patience)
	if err != nil || !ready[0] {
		return 0, errors.Join(ErrNoAnswer, err)
	}
	remove() // both sides have them open, or never will
	remove = func() {}
	if err := syscall.SetNonblock(fd, false); err != nil {
		return 0, err
	}
	return receive(os.NewFile(uintptr(fd), r.Answer), stdout, stderr)
}

// makeFIFO makes a FIFO and opens it for reading, which does not wait for a writer.
func makeFIFO(path string) (int, error) {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return -1, fmt.Errorf("cannot make a FIFO: %w", err)
	}
	return openFIFO(path, syscall.O_RDONLY)
}

func openFIFO(path string, flags int) (int, error) {
	fd, err := syscall.Open(path, flags|syscall.O_NONBLOCK|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// send writes a message to the request FIFO, in one piece.
func send(message []byte) error {
	fd, err := syscall.Open(FIFO, syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	switch {
	case err == syscall.ENXIO:
		return ErrGone
	case err != nil:
		return &fs.PathError{Op: "open", Path: FIFO, Err: err}
	}
	defer syscall.Close(fd)
	if err := syscall.SetNonblock(fd, false); err != nil {
		return err
	}
	for {
		_, err := syscall.Write(fd, message)
		switch err {
		case syscall.EINTR:
		case syscall.EPIPE:
			return ErrGone
		default:
			return err
		}
	}
}

// sendBody writes what the message had no room for. The FIFO is open for reading as
// well, so this waits for the chaperon; an error shows in the answer.
func sendBody(fd int, r Request) {
	r.Answer, r.Body = "", ""
	syscall.SetNonblock(fd, false)
	os.NewFile(uintptr(fd), "body").Write(append(r.lines(), "END\n"...))
}

// receive copies an answer.
func receive(answer io.Reader, stdout, stderr io.Writer) (exit int, err error) {
	in := bufio.NewReaderSize(answer, MaxLine)
	for {
		l, err := in.ReadSlice('\n')
		if err != nil {
			return 0, ErrCut
		}
		word, value, _ := bytes.Cut(l[:len(l)-1], []byte(" "))
		to := stdout
		switch string(word) {
		case "EXIT":
			exit, err := strconv.Atoi(string(value))
			if err != nil || exit < 0 || exit > 255 {
				return 0, ErrCut
			}
			return exit, nil
		case "STDERR":
			to = stderr
		case "STDOUT":
		default:
			continue
		}
		text := make([]byte, base64.StdEncoding.DecodedLen(len(value)))
		n, err := base64.StdEncoding.Decode(text, value)
		if err != nil {
			return 0, ErrCut
		}
		if _, err := to.Write(text[:n]); err != nil {
			return 0, fmt.Errorf("cannot write: %w", err)
		}
	}
}
