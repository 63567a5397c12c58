// Package chaperontest tests the Slurm proxy's FIFO, its client program and its
// place in a launch on real sessions of ordinary users. What of Slurm it lets
// through is test/slurm.
package chaperontest

import (
	"testing"

	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestFirst(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("CHAPERON=on\nCHAPERON_LOG_LEVEL=debug\n")
	r := u.Run("agent-sandbox", "--", "bash", "-c", "id; echo $PATH; ls -la /run/agent-sandbox/ /run/agent-sandbox/*; grep agent-sandbox /proc/self/mountinfo; squeue; echo $?; salloc; echo $?; cat /etc/slurm/*; ls -la /usr/bin/sbatch; /usr/bin/squeue")
	t.Log(r.Stdout, r.Stderr, r.Code)
	t.Log(u.Run("bash", "-c", "cat ~/.local/state/agent-sandbox/log/chaperon/*; find $XDG_RUNTIME_DIR").Stdout)
}
