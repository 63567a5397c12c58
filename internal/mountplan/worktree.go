package mountplan

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// worktree makes the common folder of a linked git worktree writable, so that
// git can commit there. The project's .git file is the agent's to forge, so
// nothing is granted on its word: the folder it names must point back to this
// very file (gitrepository-layout(5), worktrees/<id>/gitdir), lie where git puts
// it (COMMON/worktrees/<id>), and belong to the user.
func (b *builder) worktree(project string) {
	dotgit := join(project, ".git")
	info, err := b.h.Lstat(dotgit)
	if errors.Is(err, fs.ErrNotExist) {
		b.partOfRepository(project)
	}
	if err != nil || info.Type != Regular {
		return
	}
	data, err := b.h.ReadFile(dotgit, 4096)
	if err != nil {
		return
	}
	target, ok := strings.CutPrefix(strings.TrimRight(string(data), "\n"), "gitdir: ")
	if !ok || target == "" {
		return
	}
	if !strings.HasPrefix(target, "/") {
		target = join(project, target)
	}
	r, err := resolve(b.h, path.Clean(target))
	if err != nil || !r.found {
		return
	}
	if b.writable[r.path] || Under(r.path, project) {
		return // a submodule's folder inside the project, or granted already
	}
	common := parent(parent(r.path))
	if why := b.notWorktree(r, dotgit, common); why != "" {
		b.warn("git cannot commit here: %q names %q, %s: EXTRA_WRITABLE_PATHS+=(%s) allows it", dotgit, r.path, why, r.path)
		return
	}
	if d := b.deniedBy(common); d != "" {
		b.warn("git cannot commit here: the worktree's common folder %q lies under %q, which DENIED_WRITABLE_PATHS forbids", common, d)
		return
	}
	b.pushRW(common)
	b.common = common
	b.gitdir = r.path
}

// partOfRepository warns where the project lies inside a repository: git does not
// find it from there, since what is above the project is not shown.
func (b *builder) partOfRepository(project string) {
	for d := parent(project); d != "/" && d != b.home_; d = parent(d) {
		if _, err := b.h.Lstat(join(d, ".git/HEAD")); err != nil {
			continue
		}
		if g, ok := b.governing(d); !ok || g.Kind != RO && g.Kind != RW {
			b.warn("git does not work in the sandbox: the project is part of the repository %q: start there, or name it with --project-dir", d)
		}
		return
	}
}

// notWorktree says why the folder a .git file names is not taken as the
// project's own, or nothing.
func (b *builder) notWorktree(r resolved, dotgit, common string) string {
	if path.Base(parent(r.path)) != "worktrees" {
		return "which is not a worktree's folder"
	}
	back, err := b.h.ReadFile(join(r.path, "gitdir"), 4096)
	if err != nil || strings.TrimRight(string(back), "\n") == "" {
		return "which does not point back"
	}
	if q, err := resolve(b.h, path.Clean(strings.TrimRight(string(back), "\n"))); err != nil || q.path != dotgit {
		return "which belongs to another worktree"
	}
	cd, err := b.h.ReadFile(join(r.path, "commondir"), 4096)
	if err != nil {
		return "which has no common folder"
	}
	dir := strings.TrimRight(string(cd), "\n")
	if !strings.HasPrefix(dir, "/") {
		dir = join(r.path, dir)
	}
	if q, err := resolve(b.h, path.Clean(dir)); err != nil || q.path != common {
		return "whose common folder lies elsewhere"
	}
	for _, name := range []string{"HEAD", "objects", "refs"} {
		info, err := b.h.Lstat(join(common, name))
		if err != nil || info.Type == Link || int(info.UID) != b.in.UID {
			return "whose common folder is not a repository of yours"
		}
	}
	return ""
}
