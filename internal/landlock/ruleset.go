package landlock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"agent-sandbox/internal/sys"
)

// Rights on files, linux/landlock.h.
const (
	execute = 1 << iota
	writeFile
	readFile
	readDir
	removeDir
	removeFile
	makeChar
	makeDir
	makeReg
	makeSock
	makeFifo
	makeBlock
	makeSym
	refer    // version 2
	truncate // version 3
	ioctlDev // version 5
)

// onFiles are those that a rule for anything but a folder may have.
const onFiles = execute | writeFile | readFile | truncate | ioctlDev

// handled are the rights that a version of Landlock can take away.
func handled(abi int) uint64 {
	h := uint64(refer - 1)
	if abi >= 2 {
		h |= refer
	}
	if abi >= 3 {
		h |= truncate
	}
	if abi >= 5 {
		h |= ioctlDev
	}
	return h
}

// scopes are the scopes that a version has.
func scopes(abi int) uint64 {
	if abi < ScopesABI {
		return 0
	}
	return scopeAbstractSocket | scopeSignal
}

func (a Access) rights() uint64 {
	var r uint64
	if a&Read != 0 {
		r |= execute | readFile
	}
	if a&List != 0 {
		r |= readDir
	}
	if a&Write != 0 {
		// Device nodes are never made inside.
		r |= writeFile | removeDir | removeFile | makeDir | makeReg | makeSock | makeFifo | makeSym | refer | truncate
	}
	if a&Ioctl != 0 {
		r |= ioctlDev
	}
	return r
}

// Ruleset opens every path of the rules and makes the kernel's ruleset. The
// terminal or file behind each of std, the command's standard input, output and
// error, is granted as far as it is open, so that /dev/stdout works. What does not
// exist, or cannot be reached by the caller, is left out.
func (r *Rules) Ruleset(std ...*os.File) (*os.File, error) {
	abi, err := ABI()
	if err != nil {
		return nil, err
	}
	all := handled(abi)
	fd, err := sys.LandlockRuleset(all, 0, scopes(abi))
	if err != nil {
		return nil, err
	}
	set := os.NewFile(uintptr(fd), "landlock ruleset")
	if err := r.fill(fd, all, std); err != nil {
		set.Close()
		return nil, err
	}
	return set, nil
}

func (r *Rules) fill(set int, all uint64, std []*os.File) error {
	// Rules are for objects, not for names: a hidden one that has a second name
	// among the granted ones, or was moved there meanwhile, stays hidden.
	type object struct{ dev, ino uint64 }
	hide := map[object]bool{}
	for _, p := range r.Hidden {
		if st, err := sys.Lstat(p); err == nil {
			hide[object{st.Dev, st.Ino}] = true
		}
	}
	allow := func(f *os.File, rights uint64) error {
		st, err := sys.Fstat(f)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			rights &= onFiles
		}
		if rights &= all; rights == 0 || hide[object{st.Dev, st.Ino}] {
			return nil
		}
		if err := sys.LandlockAllow(set, int(f.Fd()), rights); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		return nil
	}
	for _, rule := range r.Rules {
		f, err := sys.OpenNoFollow(rule.Path, sys.O_PATH)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return err
		}
		err = allow(f, rule.Access.rights())
		f.Close()
		if err != nil {
			return err
		}
	}
	for _, f := range std {
		st, err := sys.Fstat(f)
		if err != nil || !st.IsRegular() && !st.IsDevice() {
			continue // pipes and sockets are under no rule
		}
		read, write := sys.OpenFor(f)
		var rights uint64
		if read {
			rights |= readFile
		}
		if write {
			rights |= writeFile | truncate
		}
		if st.IsDevice() {
			rights |= ioctlDev
		}
		if err := allow(f, rights); err != nil {
			return err
		}
	}
	return nil
}
