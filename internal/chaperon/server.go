// Package chaperon is the Slurm proxy of a session, on the host's side: it takes
// requests from the session's FIFO, has package slurm decide on them and run what is
// allowed, and writes the answers to FIFOs that the clients made. See chaperon(8).
//
// Every client is hostile, and none may keep another waiting. The one FIFO that all
// share is only ever read, in pieces that hold whole requests. What a client can make
// slow (the rest of a long request, an answer that nobody reads) is waited for by a
// goroutine of that request alone; there are so many of those and no more, and a new
// request takes the place of the one that has kept us waiting longest.
package chaperon

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/slurm"
	"agent-sandbox/internal/sys"
)

// Limits of a session.
const (
	maxRequests = 1024             // in work at a time
	maxRunning  = 128              // commands that run at a time
	maxStarting = 16               // of them those that are not slow
	slow        = 5 * time.Second  // after which a command counts as one that waits for something
	maxLarge    = 8                // requests of more than smallBody at a time
	smallBody   = 64 << 10         // bytes
	readTime    = 15 * time.Second // for the rest of a request
	grace       = time.Second      // in which a client that keeps us waiting is not given up for another
)

// A Server serves one session.
type Server struct {
	Answers *os.File // O_PATH: the folder relay.Answers of the session
	UID     int
	Log     *sessionlog.Log
	// Session gives the session as it is now.
	Session func() (*slurm.Session, error)
	// Run is slurm.Run.
	Run func(ctx context.Context, s *slurm.Session, r *slurm.Request, stdout, stderr io.Writer, log func(level, format string, args ...any)) int

	refusals *flood
	reloads  *flood
	mu       sync.Mutex
	requests map[*request]bool
	number   int
	starting chan struct{}
	large    chan struct{}
	running  atomic.Int32
	work     sync.WaitGroup
}

// A request is one in work.
type request struct {
	relay.Request
	n      int
	cancel context.CancelFunc
	// waiting is since when the client keeps us waiting, in nanoseconds of the
	// epoch; 0: it does not.
	waiting atomic.Int64
}

// Serve reads requests until ctx ends, and returns when none is in work any more.
func (s *Server) Serve(ctx context.Context, fifo *os.File) error {
	s.requests = map[*request]bool{}
	s.refusals, s.reloads = newFlood(s.Log), newFlood(s.Log)
	s.starting, s.large = make(chan struct{}, maxStarting), make(chan struct{}, maxLarge)
	stop := context.AfterFunc(ctx, func() { fifo.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		s.work.Wait()
		s.refusals.settle()
		s.reloads.settle()
	}()
	// Larger than the pipe can be made (pipe-max-size), so that a read takes all
	// that is there and cuts no request.
	buf := make([]byte, 1<<20)
	kept := 0
	var requests relay.Splitter
	for {
		n, err := fifo.Read(buf[kept:])
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read the request FIFO: %w", err)
		}
		batch := buf[:kept+n]
		rest := 0
		if len(batch) == len(buf) {
			// It is larger here.
			rest = tail(batch)
			batch = batch[:len(batch)-rest]
		}
		requests.Split(batch, time.Now(), func(r relay.Request, err error) { s.take(ctx, r, err) })
		kept = copy(buf, buf[len(batch):len(batch)+rest])
	}
}

// tail is how much of the end of a full batch is a line whose rest is still in the
// pipe.
func tail(batch []byte) int {
	last := batch[max(0, len(batch)-relay.MaxMessage):]
	return len(last) - 1 - bytes.LastIndexByte(last, '\n')
}

// take starts work on a request.
func (s *Server) take(ctx context.Context, r relay.Request, err error) {
	s.number++
	n := s.number
	if r.Command == relay.Reload {
		// Whether it is whole or not. There is no answer: nothing inside asks for one.
		s.reloads.line(sessionlog.Warn, "request %d: asks for a reload, which is not asked for from inside: ignored", n)
		return
	}
	if err != nil {
		s.refusals.line(sessionlog.Warn, "request %d: refused: %s %v", n, quote(r.Command), err)
		s.refuse(r, fmt.Sprintf("%v: write it at once, in at most %d bytes, or with its digest (chaperon(8))", err, relay.MaxMessage))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	q := &request{Request: r, n: n, cancel: cancel}
	if !s.admit(q) {
		cancel()
		s.refusals.line(sessionlog.Warn, "request %d: refused: %s: %d requests are in work", n, quote(r.Command), maxRequests)
		s.refuse(r, "too many requests at a time")
		return
	}
	s.work.Go(func() {
		defer s.leave(q)
		defer cancel()
		s.serve(ctx, q)
	})
}

// admit gives a request a place: where there is none that of the request whose
// client has kept us waiting longest.
func (s *Server) admit(q *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) >= maxRequests {
		var longest *request
		before := time.Now().Add(-grace).UnixNano()
		for o := range s.requests {
			if since := o.waiting.Load(); since != 0 && since < before {
				longest, before = o, since
			}
		}
		if longest == nil {
			return false
		}
		longest.cancel()
		delete(s.requests, longest)
		s.refusals.line(sessionlog.Warn, "request %d: given up: its client keeps others waiting", longest.n)
	}
	s.requests[q] = true
	return true
}

func (s *Server) leave(q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.requests, q)
}

// openFIFO opens a FIFO that a client has made in the answer folder: nothing else,
// nowhere else, and no one else's. The very object that was looked at is opened. One
// without a reader cannot be opened for writing.
func (s *Server) openFIFO(path string, flags int) (*os.File, error) {
	name, err := relay.InAnswers(path)
	if err != nil {
		return nil, err
	}
	at, err := sys.OpenBeneath(s.Answers, name)
	if err != nil {
		return nil, cause(err)
	}
	defer at.Close()
	st, err := sys.Fstat(at)
	switch {
	case err != nil:
		return nil, cause(err)
	case !st.IsFIFO():
		return nil, errors.New("it is no FIFO")
	case int(st.UID) != s.UID:
		return nil, errors.New("it is another user's")
	}
	f, err := sys.ReopenNonblock(at, flags)
	if errors.Is(err, syscall.ENXIO) {
		return nil, errors.New("nobody reads it")
	}
	return f, cause(err)
}

// cause is an error without the path, which the client has chosen.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// refuse answers with an error alone, without waiting: an empty pipe has room for it.
func (s *Server) refuse(r relay.Request, text string) {
	if r.Answer == "" {
		return
	}
	f, err := s.openFIFO(r.Answer, syscall.O_WRONLY)
	if err != nil {
		return
	}
	defer f.Close()
	if c, err := f.SyscallConn(); err == nil {
		l := relay.Line("STDERR", fmt.Appendf(nil, "%s: error: %s\n", cmp.Or(r.Command, "chaperon"), text)) + "EXIT 1\n"
		c.Write(func(fd uintptr) bool { syscall.Write(int(fd), []byte(l)); return true })
	}
}

// serve reads the rest of a request, has it run, and answers.
func (s *Server) serve(ctx context.Context, q *request) {
	log := &events{s: s, n: q.n}
	f, err := s.openFIFO(q.Answer, syscall.O_WRONLY)
	if err != nil {
		log.line(sessionlog.Warn, "refused: %s: cannot open the answer FIFO %q: %v", q.Command, q.Answer, err)
		return
	}
	defer f.Close()
	// What ends the request ends what is waited for on its behalf.
	defer context.AfterFunc(ctx, func() { f.SetDeadline(time.Unix(1, 0)) })()
	a := &answer{f: f, q: q}
	fail := func(text string) {
		a.write("STDERR", fmt.Appendf(nil, "%s: error: %s\n", q.Command, text))
		a.exit(1)
	}
	var body *os.File
	if q.Body != "" {
		if body, err = s.openFIFO(q.Body, syscall.O_RDWR); err != nil {
			log.line(sessionlog.Warn, "refused: %s: cannot open the body FIFO %q: %v", q.Command, q.Body, err)
			fail("cannot read the request")
			return
		}
	}
	a.greet()
	go a.watch(q.cancel)
	if body != nil {
		release, err := s.readBody(ctx, q, body)
		defer release()
		if err != nil {
			log.line(sessionlog.Warn, "refused: %s: %v", q.Command, err)
			fail(err.Error())
			return
		}
	}
	log.asked = describe(q)
	if !slices.Contains(relay.Commands, q.Command) {
		log.line(sessionlog.Warn, "refused: there is no such command")
		fail("not a command of the sandbox's Slurm")
		return
	}
	session, err := s.Session()
	if err != nil {
		log.line(sessionlog.Error, "refused: %v", err)
		fail("the session's record cannot be read")
		return
	}
	started, err := s.start(ctx)
	if err != nil {
		log.line(sessionlog.Warn, "refused: %v", err)
		fail(err.Error())
		return
	}
	defer started()
	exit := s.Run(ctx, session, &slurm.Request{Command: q.Command, Args: q.Args, Cwd: q.Cwd, Script: q.Script, HasScript: q.HasScript},
		stream{a, "STDOUT"}, stream{a, "STDERR"}, log.line)
	if ctx.Err() != nil {
		log.end("ended: its client is gone")
	} else {
		log.end("exit status %d", exit)
	}
	a.exit(exit)
}

// readBody reads the lines that the request FIFO had no room for. release gives back
// what it holds, once the request is done.
func (s *Server) readBody(ctx context.Context, q *request, body *os.File) (release func(), err error) {
	release = func() {}
	defer body.Close()
	defer context.AfterFunc(ctx, func() { body.SetReadDeadline(time.Unix(1, 0)) })()
	body.SetReadDeadline(time.Now().Add(readTime))
	q.waiting.Store(time.Now().UnixNano())
	defer q.waiting.Store(0)
	err = q.ReadBody(bufio.NewReaderSize(body, relay.MaxLine), smallBody, func() error {
		timeout := time.NewTimer(readTime)
		defer timeout.Stop()
		select {
		case s.large <- struct{}{}:
			release = func() { <-s.large }
			return nil
		case <-timeout.C:
			return errors.New("too many long requests at a time")
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	switch {
	case ctx.Err() != nil:
		err = errors.New("its client is gone, or was given up")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the request did not come in time")
	case errors.Is(err, bufio.ErrBufferFull):
		err = relay.ErrLong
	}
	return release, err
}

// start waits for a place to run a command in.
func (s *Server) start(ctx context.Context) (done func(), err error) {
	select {
	case s.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.running.Add(1) > maxRunning {
		s.running.Add(-1)
		<-s.starting
		return nil, fmt.Errorf("%d commands of this session run already", maxRunning)
	}
	// One that takes its time (srun, a controller that does not answer) makes room.
	free := sync.OnceFunc(func() { <-s.starting })
	timer := time.AfterFunc(slow, free)
	return func() {
		timer.Stop()
		free()
		s.running.Add(-1)
	}, nil
}

// An answer is written to a client.
type answer struct {
	mu sync.Mutex
	f  *os.File
	q  *request
}

// greet says that the request is being read.
func (a *answer) greet() { a.line(relay.Version + "\n") }

func (a *answer) exit(status int) { a.line(fmt.Sprintf("EXIT %d\n", status)) }

// piece is how much output goes in one line.
const piece = 24 << 10

func (a *answer) write(word string, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if err := a.line(relay.Line(word, p[:n])); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (a *answer) line(l string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.q.waiting.Store(time.Now().UnixNano())
	_, err := io.WriteString(a.f, l)
	a.q.waiting.Store(0)
	if err != nil {
		a.q.cancel() // nobody is there to hear of it
	}
	return err
}

// watch calls gone when the client has closed its end: a command that prints nothing
// is ended too. It returns when the FIFO is closed here.
func (a *answer) watch(gone func()) {
	c, err := a.f.SyscallConn()
	if err != nil {
		return
	}
	// Waits in the runtime's poller: there is nothing to read, but an error wakes it.
	c.Read(func(fd uintptr) bool { return sys.HungUp(int(fd)) })
	gone()
}

// A stream is standard output or error of a command.
type stream struct {
	a    *answer
	word string
}

func (s stream) Write(p []byte) (int, error) {
	if err := s.a.write(s.word, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
