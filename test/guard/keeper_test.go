package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/sys"
	"agent-sandbox/test/harness"
)

// A guard that starts late finds the record where the launcher has put it meanwhile.
func TestGuardStartsLate(t *testing.T) {
	u := harness.NewUser(t)
	bin := filepath.Join(u.Home, "bin")
	for _, name := range []string{"agent-sandbox", "mount-guard", "mount-repair", "chaperon", "chaperon-stub"} {
		data, err := os.ReadFile(harness.Bin(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "mount-guard" {
			name = "real-guard"
		}
		u.Write(filepath.Join(bin, name), string(data))
		os.Chmod(filepath.Join(bin, name), 0o755)
	}
	u.Write(filepath.Join(bin, "mount-guard"), "#!/bin/sh\nsleep 0.3\nexec "+bin+"/real-guard \"$@\"\n")
	os.Chmod(filepath.Join(bin, "mount-guard"), 0o755)
	if r := u.Run(filepath.Join(bin, "agent-sandbox"), "--", "true"); r.Code != 0 {
		t.Errorf("%v", r)
	}
}

// A guard that cannot read the record gives up, and the sandbox with it: the launcher
// may be gone by then.
func TestRecordThatCannotBeRead(t *testing.T) {
	for name, record := range map[string]string{"none": "", "broken": "agent-sandbox-session 1\n"} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			if err := os.MkdirAll(filepath.Join(base, "agent-sandbox/sessions/0123abcd.d"), 0o700); err != nil {
				t.Fatal(err)
			}
			if record != "" {
				if err := os.WriteFile(filepath.Join(base, "agent-sandbox/sessions/0123abcd.d/record"), []byte(record), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			sandbox := exec.Command("sleep", "1000") // what stands for pid 1
			if err := sandbox.Start(); err != nil {
				t.Fatal(err)
			}
			defer sandbox.Process.Kill()
			pidfd, err := sys.PidfdOpen(sandbox.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer pidfd.Close()
			k, err := keeper.Start(harness.Bin(t, "mount-guard"), filepath.Join(base, "agent-sandbox/sessions/0123abcd"))
			if err != nil {
				t.Fatal(err)
			}
			defer k.End()
			if err := k.Prepare(); err != nil {
				t.Fatal(err)
			}
			if err := k.Watch(pidfd); err != nil {
				t.Fatal(err)
			}
			if err := k.Watching(); err == nil {
				t.Error("it watches")
			}
			if err := sandbox.Wait(); err == nil || sandbox.ProcessState.String() != "signal: killed" {
				t.Errorf("the sandbox: %v", sandbox.ProcessState)
			}
		})
	}
}
