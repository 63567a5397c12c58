package session

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"agent-sandbox/internal/cli"
)

// Repair runs mount-repair on a session with the given operations (section 7 of
// the contract, mount-repair(8)) and fails unless every one of them was done.
func Repair(r Record, ops []string) error {
	path, err := cli.Helper("mount-repair")
	if err != nil {
		return err
	}
	cmd := exec.Command(path, strconv.Itoa(r.Sandbox.PID), strconv.FormatUint(r.Sandbox.Start, 10), strconv.FormatUint(r.MountNS, 10))
	cmd.Stdin = strings.NewReader(strings.Join(ops, "\n") + "\n")
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	if err := cmd.Run(); err != nil {
		why := strings.TrimSpace(out.String() + errb.String())
		var exit *exec.ExitError
		if errors.As(err, &exit) && why != "" {
			return fmt.Errorf("mount-repair: %s", why)
		}
		return fmt.Errorf("mount-repair: %w", err)
	}
	return nil
}
