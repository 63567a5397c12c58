package mountop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/cli"
)

// Target names a session's sandbox as mount-repair wants it.
type Target struct {
	PID     int
	Start   uint64 // field 22 of /proc/PID/stat
	MountNS uint64 // inode
}

// ErrNotEntered says that mount-repair could not be started or did not get into
// the session: no operation was tried.
var ErrNotEntered = errors.New("no operation was tried")

// Run does ops in the session through mount-repair, with a deadline: after it no
// process of Run's is left. The results are those of the first operations, in
// order: fewer than ops where mount-repair ended early, which the error tells.
// Unless that is ErrNotEntered, operations without a result may have been done.
func Run(t Target, ops []Op, timeout time.Duration) ([]Result, error) {
	path, err := cli.Helper("mount-repair")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotEntered, err)
	}
	var in strings.Builder
	for _, op := range ops {
		in.WriteString(op.Line() + "\n")
	}
	seconds := max(1, int(timeout/time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--timeout", strconv.Itoa(seconds), strconv.Itoa(t.PID), strconv.FormatUint(t.Start, 10), strconv.FormatUint(t.MountNS, 10))
	cmd.Stdin = strings.NewReader(in.String())
	cmd.Dir = "/" // it must not keep a folder of the user busy
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotEntered, err)
	}
	runErr := cmd.Wait()
	var results []Result
	for line := range strings.Lines(out.String()) {
		r, err := ParseResult(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return results, fmt.Errorf("mount-repair: %w", err)
		}
		results = append(results, r)
	}
	if len(results) == len(ops) {
		return results, nil
	}
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return results, errors.New("time ran out")
	}
	if why := strings.TrimSpace(errb.String()); errors.As(runErr, &exit) && why != "" {
		err := errors.New(strings.TrimPrefix(why, "mount-repair: "))
		if exit.ExitCode() == cannotEnter {
			err = fmt.Errorf("%w: %w", ErrNotEntered, err)
		}
		return results, err
	}
	return results, fmt.Errorf("mount-repair gave %d results of %d: %w", len(results), len(ops), runErr)
}

// cannotEnter is the exit status of mount-repair that did nothing (mount-repair(8)).
const cannotEnter = 3

// All is Run where every operation has to be done.
func All(t Target, ops []Op, timeout time.Duration) error {
	results, err := Run(t, ops, timeout)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Status != OK {
			return fmt.Errorf("%s %s: %s %s", ops[i].Do, cli.Quote(ops[i].Path), r.Status, r.Text)
		}
	}
	return nil
}
