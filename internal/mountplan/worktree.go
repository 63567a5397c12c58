package mountplan

import (
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
