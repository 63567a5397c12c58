package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

const (
	fileLimit = 1 << 20 // bytes of one configuration file
	confdMax  = 256     // files in conf.d: each is a descriptor of the bash
)

// file is a configuration file, read once. What was checked and read is what the
// bash runs; the name is not used again.
type file struct {
	layer   string // "admin", "user", "project"
	path    string
	content []byte
	lines   []string
}

// String is the path as messages show it.
func (f *file) String() string { return record.Escape(f.path) }

// openAdmin opens the admin's file; nil where there is none. The folders from /
// on and the file must belong to root and be closed to writing by others, since
// whoever can replace one of them is the admin. Links are refused: their targets
// would have folders of their own to check.
func openAdmin() (*file, error) {
	path := filepath.Join(AdminDir, "sandbox.conf")
	refuse := func(at string, err error) error {
		return cli.WithHint(fmt.Errorf("cannot use the administrator's configuration: %s: %w", record.Escape(at), err),
			"the administrator of this machine has to mend it: sandbox.conf and the folders above it must belong to root, be writable by root only, and be no links")
	}
	at, err := sys.OpenPath("/")
	if err != nil {
		return nil, refuse("/", err)
	}
	defer func() { at.Close() }()
	rest := strings.Split(strings.Trim(path, "/"), "/")
	var unsafe error // of the first folder that others can write: it counts where there is a file
	for i := 0; ; i++ {
		st, err := sys.Fstat(at)
		switch {
		case err != nil:
		case st.IsLink():
			err = errors.New("is a symbolic link")
		case i < len(rest) && !st.IsDir():
			err = errors.New("is not a folder")
		case unsafe != nil:
		case st.UID != 0:
			// As / is in a user namespace that does not map the host's root.
			unsafe = refuse(at.Name(), fmt.Errorf("belongs to uid %d, not to root", st.UID))
		case st.Perm()&0o022 != 0:
			unsafe = refuse(at.Name(), fmt.Errorf("mode %04o lets others than root write it", st.Perm()))
		}
		if err != nil {
			return nil, refuse(at.Name(), err)
		}
		if i == len(rest) {
			break
		}
		next, err := sys.OpenPathAt(at, rest[i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, refuse("/"+strings.Join(rest[:i+1], "/"), cause(err))
		}
		at.Close()
		at = next
	}
	if unsafe != nil {
		return nil, unsafe
	}
	f, err := readFile(at, "admin", path)
	if err != nil {
		return nil, refuse(path, err)
	}
	return f, nil
}

// openUser opens a file of the user's. Links are followed: people keep their
// configuration in a folder of dotfiles. With own, it must belong to uid.
func openUser(layer, path string, uid int, own bool) (*file, error) {
	at, err := sys.OpenPath(path)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	st, err := sys.Fstat(at)
	if err != nil {
		return nil, err
	}
	fail := func(err error, hint string) error {
		return cli.WithHint(fmt.Errorf("cannot read the configuration %s: %w", record.Escape(path), err), "%s", hint)
	}
	switch {
	case !st.IsRegular():
		return nil, fail(notRegular(st), "name a file")
	case own && int(st.UID) != uid:
		return nil, fail(fmt.Errorf("belongs to uid %d, not to you (uid %d)", st.UID, uid), "it would be run as you; restart the session with a file of your own")
	case st.Perm()&0o002 != 0:
		return nil, fail(fmt.Errorf("everyone can write it (mode %04o), and it is run as you", st.Perm()), "chmod o-w "+shellWord(path))
	}
	f, err := readFile(at, layer, path)
	if err != nil {
		hint := "see agent-sandbox.conf(5)"
		switch {
		case errors.Is(err, fs.ErrPermission):
			hint = "chmod u+r " + shellWord(path)
		case errors.Is(err, errCRLF):
			hint = "sed -i 's/\\r$//' " + shellWord(path)
		}
		return nil, fail(err, hint)
	}
	return f, nil
}

var (
	errCRLF = errors.New("lines end in CR LF, which bash does not take")
	errNUL  = errors.New("holds NUL bytes, it is no text file")
	errBOM  = errors.New("begins with a byte order mark, which bash takes for part of the first word")
)

// readFile reads what an O_PATH descriptor refers to, after its type is known:
// neither a FIFO nor a device is ever opened.
func readFile(at *os.File, layer, path string) (*file, error) {
	st, err := sys.Fstat(at)
	if err != nil {
		return nil, err
	}
	if !st.IsRegular() {
		return nil, notRegular(st)
	}
	if st.Size > fileLimit {
		return nil, tooLarge()
	}
	r, err := sys.Reopen(at)
	if err != nil {
		return nil, cause(err)
	}
	defer r.Close()
	content, err := sys.ReadLimited(r, fileLimit)
	switch {
	case errors.Is(err, sys.ErrTooLarge):
		return nil, tooLarge()
	case err != nil:
		return nil, cause(err)
	case bytes.IndexByte(content, 0) >= 0:
		return nil, errNUL
	case bytes.HasPrefix(content, []byte("\xef\xbb\xbf")):
		return nil, errBOM
	}
	if i := bytes.Index(content, []byte("\r\n")); i >= 0 {
		return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(content[:i], []byte("\n")), errCRLF)
	}
	return &file{layer: layer, path: path, content: content, lines: strings.Split(string(content), "\n")}, nil
}

func tooLarge() error { return fmt.Errorf("is larger than %d MiB", fileLimit>>20) }

func notRegular(st sys.Stat) error {
	if st.IsDir() {
		return errors.New("is a folder")
	}
	return errors.New("is not a regular file")
}

// cause is the error without the path, where the message names the path itself.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		if p.Err == syscall.ELOOP {
			return errors.New("is a symbolic link")
		}
		return p.Err
	}
	return err
}

// confd are the files of conf.d in the order of their bytes.
func confd(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the folder %s: %w", record.Escape(dir), cause(err))
	}
	var out []string
	for _, e := range entries {
		if n := e.Name(); strings.HasSuffix(n, ".conf") && n[0] != '.' {
			out = append(out, filepath.Join(dir, n))
		}
	}
	if len(out) > confdMax {
		return nil, cli.WithHint(fmt.Errorf("cannot read the folder %s: it has %d files, more than %d", record.Escape(dir), len(out), confdMax),
			"put several projects into one file, told apart by _PROJECT_DIR")
	}
	slices.Sort(out)
	return out, nil
}

// shellWord is s as one word of a command line that a hint shows.
func shellWord(s string) string {
	if record.Word(s, record.Upper+record.Lower+record.Digits+"_/.+:@%-") {
		return s
	}
	return record.Escape(quote(s))
}

// origin says where this file gives a variable the element text: the line of an
// assignment that shows the text, else one that shows its last component (the
// rest came from a variable), else the last assignment. Bash does not tell lines,
// so this is read from the text; 0 where no assignment is seen (the variable was
// set by a command, or in a file that this one sources).
func (f *file) origin(name, text string) Origin {
	whole, part, last := 0, 0, 0
	look := func(i int, rest string) {
		rest, _, _ = strings.Cut(rest, " #")
		switch {
		case text == "":
			// Written as an empty word, or as something that expands to nothing.
			if strings.Contains(rest, `""`) || strings.Contains(rest, "''") || strings.Contains(rest, `"$`) {
				whole = i + 1
			}
		case strings.Contains(rest, text):
			whole = i + 1
		case strings.Contains(text, "/") && strings.Contains(rest, text[strings.LastIndexByte(text, '/'):]):
			part = i + 1
		}
	}
	for i := 0; i < len(f.lines); i++ {
		rest, ok := assigns(f.lines[i], name)
		if !ok {
			continue
		}
		last = i + 1
		look(i, rest)
		if !strings.HasPrefix(rest, "(") {
			continue
		}
		for !strings.Contains(rest, ")") && i+1 < len(f.lines) {
			i++
			rest = f.lines[i]
			look(i, rest)
		}
	}
	return Origin{Layer: f.layer, File: f.path, Line: cmp.Or(whole, part, last)}
}

// assigns finds `NAME=` or `NAME+=` in a line and returns what follows the sign.
func assigns(line, name string) (rest string, ok bool) {
	if strings.HasPrefix(strings.TrimSpace(line), "#") {
		return "", false
	}
	for at := 0; ; {
		i := strings.Index(line[at:], name)
		if i < 0 {
			return "", false
		}
		i += at
		at = i + len(name)
		if i > 0 && !strings.ContainsRune(" \t;&|{(", rune(line[i-1])) {
			continue
		}
		after := strings.TrimPrefix(line[at:], "+")
		if strings.HasPrefix(after, "=") {
			return after[1:], true
		}
	}
}
