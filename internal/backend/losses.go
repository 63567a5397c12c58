package backend

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/config"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/landlock"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// LandlockLosses are the protections that no rules give, whatever the plan: those
// that settings ask for, and those that a session on bwrap has without asking.
// docs/backends.md has the table.
func LandlockLosses(c *config.Settings, u host.User, abi int) []mountplan.Loss {
	var out []mountplan.Loss
	setting := func(name, text string) {
		if c.Bool(name) {
			out = append(out, mountplan.Loss{Text: name + ": " + text, Admin: slices.Contains(c.Pinned(name), "true")})
		}
	}
	setting("PRIVATE_TMP", "/tmp and /var/tmp are those of the host")
	setting("PRIVATE_IPC", "/dev/shm and System V IPC are those of the host")
	setting("FILTER_PASSWD", "/etc/passwd and /etc/group show every user")
	always := func(format string, args ...any) {
		out = append(out, mountplan.Loss{Text: fmt.Sprintf(format, args...)})
	}
	if c.Scalar("HOME_ACCESS") == "tmpwrite" {
		always("HOME_ACCESS=tmpwrite: there is no temporary home, writes to it are refused")
	}
	if c.Bool("NESTED_SANDBOX") {
		always("NESTED_SANDBOX: no sandbox can be made inside, landlock refuses every mount")
	}
	always("processes of the host show in /proc, with their command lines")
	always("names, sizes and times of files everywhere show, and mode, owner and times of your own files can be changed")
	always("a command that asks for a pseudo terminal (script, tmux, expect) does not get one")
	if abi < 3 {
		always("landlock version %d: any of your files can be emptied by truncate(2); Linux 6.2 or newer refuses it", abi)
	}
	if abi < landlock.ScopesABI {
		always("landlock version %d: your processes outside can be sent signals, and abstract sockets reached; Linux 6.12 or newer refuses it", abi)
	}
	return append(out, Sockets(u)...)
}

// FirejailLosses are the same for firejail.
func FirejailLosses(isolated bool) []mountplan.Loss {
	out := []mountplan.Loss{{Text: "a protected file shows when the host replaces it by renaming during the session"}, {Text: "what the host mounts during the session can arrive inside, also below read-only folders"}}
	if abi, err := landlock.ABI(); !isolated && (err != nil || abi < landlock.ScopesABI) {
		out = append(out, mountplan.Loss{Text: "abstract sockets can be reached, the kernel's landlock has no scopes (Linux 6.12); NETWORK_FILTER_MODE=isolated closes them"})
	}
	return out
}

// Sockets warns of the unix sockets with a path, which no Landlock of the kernels
// known here keeps a process from connecting to, and which run commands or give
// out secrets outside the sandbox.
func Sockets(u host.User) []mountplan.Loss {
	return []mountplan.Loss{{Text: "unix sockets can be connected to" + named(socketsFound(u, os.Getenv("SSH_AUTH_SOCK")))}}
}

func named(paths []string) string {
	if len(paths) == 0 {
		return ", none of the known ones is there"
	}
	return ", among them " + strings.Join(paths, ", ")
}

// socketsFound are the sockets of well-known services that the user may write to.
func socketsFound(u host.User, agent string) []string {
	runtime := u.RuntimeDir
	if runtime == "" {
		runtime = fmt.Sprintf("/run/user/%d", u.UID)
	}
	type service struct{ name, glob string }
	var out []string
	for _, s := range []service{
		{"systemd --user", runtime + "/systemd/private"},
		{"D-Bus", runtime + "/bus"}, {"D-Bus", "/run/dbus/system_bus_socket"},
		{"docker", "/run/docker.sock"}, {"docker", runtime + "/docker.sock"},
		{"podman", runtime + "/podman/podman.sock"}, {"containerd", "/run/containerd/containerd.sock"},
		{"ssh-agent", agent}, {"ssh-agent", "/tmp/ssh-*/agent.*"}, {"ssh-agent", runtime + "/openssh_agent"}, {"keyring", runtime + "/keyring/*"},
		{"gpg-agent", runtime + "/gnupg/S.*"}, {"gpg-agent", u.Home + "/.gnupg/S.*"},
		{"tmux", fmt.Sprintf("/tmp/tmux-%d/*", u.UID)}, {"screen", "/run/screen/S-" + u.Name + "/*"},
		{"emacs", runtime + "/emacs/*"}, {"emacs", fmt.Sprintf("/tmp/emacs%d/*", u.UID)},
		{"X11", "/tmp/.X11-unix/*"}, {"Wayland", runtime + "/wayland-*"}, {"PulseAudio", runtime + "/pulse/native"}, {"PipeWire", runtime + "/pipewire-*"},
	} {
		if s.glob == "" {
			continue
		}
		found, _ := filepath.Glob(s.glob)
		for _, p := range found {
			st, err := sys.Lstat(p)
			label := s.name + " (" + cli.Quote(p) + ")"
			if err == nil && st.IsSocket() && sys.MayWrite(p) && !slices.Contains(out, label) {
				out = append(out, label)
			}
		}
	}
	return out
}

// Refused is the error where the admin asks for a protection that the backend
// does not have; nil where there is none.
func Refused(name string, losses []mountplan.Loss) error {
	var texts []string
	for _, l := range losses {
		if l.Admin {
			texts = append(texts, l.Text)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return cli.WithHint(fmt.Errorf("%s cannot give what the administrator's configuration asks for: %s", name, strings.Join(texts, "; ")),
		"use the bwrap backend; agent-sandbox check says what it needs")
}
