package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agent-sandbox/internal/bpf"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execd"
	"agent-sandbox/internal/sys"
)

// preflight looks for what the daemon cannot do without, each with its remedy,
// and returns where cgroup2 is mounted.
func preflight() (string, error) {
	if os.Geteuid() != 0 {
		return "", cli.WithHint(errors.New("needs root"), "systemctl start agent-sandbox-execd")
	}
	lsm, err := os.ReadFile("/sys/kernel/security/lsm")
	if errors.Is(err, fs.ErrNotExist) {
		return "", cli.WithHint(errors.New("/sys/kernel/security/lsm does not exist: the list of active security modules"),
			"mount -t securityfs securityfs /sys/kernel/security")
	}
	if err != nil {
		return "", err
	}
	active := strings.TrimSpace(string(lsm))
	if !slices.Contains(strings.Split(active, ","), "bpf") {
		return "", cli.WithHint(fmt.Errorf("bpf is not among the active security modules: %s", active),
			"boot with the kernel parameter lsm=%s,bpf on a kernel with CONFIG_BPF_LSM", active)
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return "", cli.WithHint(errors.New("/sys/kernel/btf/vmlinux does not exist: the kernel's type information"),
			"use a kernel with CONFIG_DEBUG_INFO_BTF, such as the distribution's own")
	}
	cgroups, err := execd.FindCgroup2()
	if err != nil {
		return "", cli.WithHint(err, "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	if !sys.BPFFS(filepath.Dir(pinDir)) {
		return "", cli.WithHint(fmt.Errorf("no BPF file system on %s", filepath.Dir(pinDir)), "mount -t bpf bpf %s", filepath.Dir(pinDir))
	}
	return cgroups, nil
}

// onlyOne takes the lock that a running daemon holds.
func onlyOne() (*os.File, error) {
	f, err := os.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := sys.Lock(f, false); err != nil {
		f.Close()
		if errors.Is(err, sys.ErrLocked) {
			return nil, cli.WithHint(errors.New("the daemon is running already"), "systemctl status agent-sandbox-execd")
		}
		return nil, err
	}
	return f, nil
}

// favorMoves mounts cgroup2 so that launches wait less. That it was done here is
// noted in the lock file, for --detach.
func favorMoves(lock *os.File) error {
	changed, err := execd.FavorMoves(true)
	if changed {
		_, err = lock.WriteAt([]byte(favored), 0)
	}
	return err
}

// favored is what the lock file says after favorMoves changed something.
const favored = "favordynmods\n"

// notify tells systemd (sd_notify(3)); without systemd there is nobody to tell.
func notify(log *execd.Log, state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte(state))
		c.Close()
	}
	if err != nil {
		log.Errorf("systemd cannot be told %s: %w", state, err)
	}
}

// detach undoes everything. It refuses beside a running daemon, which would go
// on to move launches into sandboxes that deny nothing.
func detach() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	lock, err := onlyOne()
	if err != nil {
		return cli.WithHint(err, "systemctl stop agent-sandbox-execd")
	}
	defer lock.Close()
	defer os.Remove(lockFile)
	cgroups, err := execd.FindCgroup2()
	if err == nil {
		err = execd.Remove(execd.Config{Cgroups: cgroups, RunDir: runDir})
	}
	if note, _ := io.ReadAll(lock); string(note) == favored {
		_, off := execd.FavorMoves(false)
		err = errors.Join(err, off)
	}
	return errors.Join(bpf.Detach(pinDir), err)
}

// status prints the sandboxes, from the kernel's maps: with or without a daemon.
func status(w io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root")
	}
	cgroups, err := execd.FindCgroup2()
	if err != nil {
		return err
	}
	list, err := bpf.ReadStatus(pinDir)
	if errors.Is(err, fs.ErrNotExist) {
		return cli.WithHint(errors.New("nothing is loaded"), "systemctl start agent-sandbox-execd")
	}
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b *bpf.Status) int { return int(int64(a.UID) - int64(b.UID)) })
	for _, s := range list {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\n", s.UID, s.Cgroup, s.Objects, s.Names, execd.Members(cgroups, s.UID))
	}
	return nil
}
