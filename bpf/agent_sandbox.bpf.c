// SPDX-License-Identifier: GPL-2.0
/*
 * The denylist in the kernel. A task is in a sandbox when its cgroup lies below
 * agent-sandbox-exec/uid-N. For such a task the hooks look up, in maps that only
 * the daemon writes, what it tries to open or to rename; for every other task
 * they compare one cgroup id and are done.
 *
 * Every hook first keeps the verdict of the hooks before it.
 */
#include "kernel.h"
#include "agent_sandbox.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct deny_key);
	__type(value, struct deny_value);
} deny_map SEC(".maps");

/*
 * A bit for every key of deny_map, by device and inode: what has none here needs no
 * look-up there. The daemon sets it before it inserts the key.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FILTER_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} filter_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name_key);
	__type(value, struct deny_value);
} name_map SEC(".maps");

/* The uid of each tracked sandbox cgroup: the daemon's memory across restarts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} agent_cgid_set SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct seen_key);
	__type(value, struct seen_value);
} seen_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, __u32);
	__type(value, struct bucket);
} bucket_map SEC(".maps");

/*
 * The programs' variables. The map behind them is pinned and shared by an old
 * and a new program while one replaces the other.
 */
volatile struct settings settings;

/* Depth of the uid's cgroup, /agent-sandbox-exec/uid-N, and of the deepest cgroup in one. */
#define SANDBOX 2
#define DEEPEST 64

/*
 * Id of the sandbox cgroup that task is in, 0 for none. The parent is compared
 * first: most tasks of a machine are outside, and this is all they pay. Plain
 * loads cost less than the helper for ancestors, which the kernel does not
 * inline; the array of ancestors cannot be read by a load (6.1).
 */
static __always_inline __u64 sandbox_of(struct task_struct *task)
{
	struct cgroup *cg = task->cgroups->dfl_cgrp;

	if (cg->level < SANDBOX)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < DEEPEST && cg->level > SANDBOX; i++)
		cg = cg->self.parent->cgroup;
	if (cg->self.parent->cgroup->kn->id != settings.parent)
		return 0;
	return cg->kn->id;
}

static __always_inline __u64 sandbox(void)
{
	return sandbox_of(bpf_get_current_task_btf());
}

/* Whether deny_map can have the inode. Must ask for the bit that FilterBit in internal/denylist names. */
static __always_inline int maybe_listed(struct inode *inode)
{
	__u64 h = (inode->i_ino ^ (__u64)inode->i_sb->s_dev << 32) * 0x9e3779b97f4a7c15ULL;
	__u32 n = h >> (64 - FILTER_SHIFT);
	__u64 *word = bpf_map_lookup_elem(&filter_map, &n);

	return !word || *word >> (h >> (64 - FILTER_SHIFT - 6) & 63) & 1;
}

static __always_inline __u32 object_flags(__u64 cgid, struct inode *inode)
{
	struct deny_key key __attribute__((aligned(8))) = { cgid, inode->i_ino, inode->i_sb->s_dev };
	struct deny_value *v;

	if (!maybe_listed(inode))
		return 0;
	v = bpf_map_lookup_elem(&deny_map, &key);
	if (!v)
		return 0;
	if (!(v->flags & OBJ_ANYGEN) && v->gen != inode->i_generation)
		return 0;
	return v->flags;
}

#define NAME_MAX 255

static __always_inline __u64 mix(__u64 h, __u64 w)
{
	h = (h ^ w) * 0x9e3779b97f4a7c15ULL;
	return h ^ h >> 32;
}

/*
 * Must give what NameHash in internal/denylist gives. The name is read from the kernel in
 * words; a hash, and not the name, keeps the key short.
 */
static __always_inline __u64 name_hash(const unsigned char *name, __u32 len)
{
	__u64 h = len, w;

#pragma clang loop unroll(disable)
	for (int i = 0; i < NAME_MAX / 8 && len >= 8; i++) {
		w = 0;
		bpf_probe_read_kernel(&w, 8, name);
		h = mix(h, w);
		name += 8;
		len -= 8;
	}
	len &= 7;
	if (len) {
		w = 0;
		bpf_probe_read_kernel(&w, len, name);
		h = mix(h, w);
	}
	return h;
}

/* Flags of the name that dentry has in dir. A frozen folder holds all its names. */
static __always_inline __u32 name_flags(__u64 cgid, struct inode *dir, struct dentry *dentry)
{
	__u32 flags = object_flags(cgid, dir);
	struct deny_value *v;

	if (flags & OBJ_FROZEN)
		return NAME_HOLD;
	if (!(flags & OBJ_NAMES))
		return 0;
	struct name_key key = { cgid, dir->i_sb->s_dev, dir->i_ino,
				name_hash(dentry->d_name.name, dentry->d_name.len) };

	v = bpf_map_lookup_elem(&name_map, &key);
	return v ? v->flags : 0;
}

/*
 * Whether inode has a denied name, of those the kernel knows now. Only for a
 * file that an overlay opens below itself: its path is the overlay's (before
 * 6.7), so its own name has to be found from the inode.
 */
static __noinline int denied_alias(__u64 cgid, struct inode *inode)
{
	struct hlist_node *node = BPF_CORE_READ(inode, i_dentry.first);

#pragma clang loop unroll(disable)
	for (int i = 0; i < 4 && node; i++) {
		struct dentry *dentry = (void *)node - bpf_core_field_offset(struct dentry, d_u.d_alias);
		struct inode *dir = BPF_CORE_READ(dentry, d_parent, d_inode);
		struct deny_key folder __attribute__((aligned(8))) = { cgid, BPF_CORE_READ(dir, i_ino), BPF_CORE_READ(dir, i_sb, s_dev) };
		struct deny_value *v = bpf_map_lookup_elem(&deny_map, &folder);

		if (v && v->flags & OBJ_NAMES) {
			struct name_key key = { cgid, folder.dev, folder.ino };

			key.hash = name_hash(BPF_CORE_READ(dentry, d_name.name), BPF_CORE_READ(dentry, d_name.len));
			v = bpf_map_lookup_elem(&name_map, &key);
			if (v && v->flags & NAME_DENY)
				return 1;
		}
		node = BPF_CORE_READ(node, next);
	}
	return 0;
}

static __always_inline int check_file(__u64 cgid, struct file *file)
{
	struct inode *inode = file->f_inode;
	struct dentry *dentry = file->f_path.dentry;
	__u32 flags;

	if ((inode->i_mode & S_IFMT) != S_IFREG)
		return 0;
	flags = object_flags(cgid, inode);
	if (flags & OBJ_DENY)
		return -EPERM;
	if (flags & OBJ_FROZEN && file->f_mode & FMODE_WRITE)
		return -EPERM;
	if (name_flags(cgid, dentry->d_parent->d_inode, dentry) & NAME_DENY)
		return -EPERM;
	if (dentry->d_inode != inode && denied_alias(cgid, inode))
		return -EPERM;
	return 0;
}

/* Notes for the daemon what its reader opened: an overlay's own inode, then the real one. */
static __noinline int note_seen(struct file *file)
{
	struct seen_key key = { bpf_get_current_pid_tgid() >> 32, 0 };
	struct inode *inode = file->f_inode;
	struct dentry *dentry = file->f_path.dentry;
	struct inode *dir;
	struct seen_value v = {}, *count;

	count = bpf_map_lookup_elem(&seen_map, &key);
	if (!count)
		return 0;
	if (dentry->d_inode != inode) {
		struct hlist_node *node = BPF_CORE_READ(inode, i_dentry.first);

		if (node) {
			dentry = (void *)node - bpf_core_field_offset(struct dentry, d_u.d_alias);
			dir = BPF_CORE_READ(dentry, d_parent, d_inode);
			v.dir_dev = BPF_CORE_READ(dir, i_sb, s_dev);
			v.dir_ino = BPF_CORE_READ(dir, i_ino);
			v.dir_gen = BPF_CORE_READ(dir, i_generation);
		}
	} else {
		dir = dentry->d_parent->d_inode;
		v.dir_dev = dir->i_sb->s_dev;
		v.dir_ino = dir->i_ino;
		v.dir_gen = dir->i_generation;
	}
	v.dev = inode->i_sb->s_dev;
	v.ino = inode->i_ino;
	v.gen = inode->i_generation;
	key.n = ++count->ino;
	bpf_map_update_elem(&seen_map, &key, &v, BPF_ANY);
	return 0;
}

SEC("lsm/file_open")
int BPF_PROG(file_open, struct file *file, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret)
		return ret;
	if (cgid == settings.readers)
		return note_seen(file);
	return check_file(cgid, file);
}

/* A descriptor that arrives over a unix socket or through pidfd_getfd. */
SEC("lsm/file_receive")
int BPF_PROG(file_receive, struct file *file, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret)
		return ret;
	return check_file(cgid, file);
}

/*
 * Attaching, /proc/PID/mem, process_vm_*, pidfd_getfd. An outside process of the
 * same user would open the file for whoever controls it. Reading /proc stays real.
 */
SEC("lsm/ptrace_access_check")
int BPF_PROG(ptrace_access_check, struct task_struct *child, unsigned int mode, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret || !(mode & PTRACE_MODE_ATTACH))
		return ret;
	return sandbox_of(child) == cgid ? 0 : -EPERM;
}

/* The other direction: a task outside that asks its parent inside to trace it. */
SEC("lsm/ptrace_traceme")
int BPF_PROG(ptrace_traceme, struct task_struct *parent, int ret)
{
	__u64 cgid = sandbox_of(parent);

	if (!cgid || ret)
		return ret;
	return sandbox() == cgid ? 0 : -EPERM;
}

static __always_inline int check_name(struct inode *dir, struct dentry *dentry)
{
	__u64 cgid = sandbox();

	if (!cgid)
		return 0;
	return name_flags(cgid, dir, dentry) ? -EPERM : 0;
}

static __always_inline int kept(__u64 cgid, struct inode *inode)
{
	return inode && object_flags(cgid, inode) & OBJ_KEEP;
}

/*
 * The user behind a task: of a task in user namespaces of its own, who made the
 * outermost, since ids inside may be any of a range that belongs to him.
 */
static __always_inline __u32 user_of(struct task_struct *task)
{
	struct user_namespace *ns = task->cred->user_ns;

	if (ns->level == 0)
		return bpf_get_current_uid_gid();
#pragma clang loop unroll(disable)
	for (int i = 0; i < 32 && ns->level > 1; i++)
		ns = ns->parent;
	return ns->owner.val;
}

#define REQUESTS_AT_ONCE 32
#define REQUESTS_PER_SECOND 32
#define NSEC_PER_SEC 1000000000ULL

/*
 * The request folder: plain files only, and so many a user and second, so that
 * nobody fills the folder or the daemon's queue for the others.
 */
static __always_inline int in_request_folder(struct inode *dir)
{
	return settings.req_ino && dir->i_ino == settings.req_ino && dir->i_sb->s_dev == settings.req_dev;
}

static __always_inline int may_request(void)
{
	__u32 uid = user_of(bpf_get_current_task_btf());
	__u64 now = bpf_ktime_get_ns();
	struct bucket *b, full = { now, REQUESTS_AT_ONCE - 1 };
	__u64 more;

	if (uid == 0)
		return 0;
	b = bpf_map_lookup_elem(&bucket_map, &uid);
	if (!b) {
		bpf_map_update_elem(&bucket_map, &uid, &full, BPF_ANY);
		return 0;
	}
	more = (now - b->since) * REQUESTS_PER_SECOND / NSEC_PER_SEC;
	if (more) {
		b->since = now;
		b->tokens += more;
		if (b->tokens > REQUESTS_AT_ONCE)
			b->tokens = REQUESTS_AT_ONCE;
	}
	if (!b->tokens)
		return -EDQUOT;
	b->tokens--;
	return 0;
}

static __always_inline int no_request(struct inode *dir)
{
	return in_request_folder(dir) && user_of(bpf_get_current_task_btf()) != 0 ? -EPERM : 0;
}

SEC("lsm/inode_create")
int BPF_PROG(inode_create, struct inode *dir, struct dentry *dentry, __u16 mode, int ret)
{
	if (ret)
		return ret;
	if (in_request_folder(dir))
		return may_request();
	return check_name(dir, dentry);
}

SEC("lsm/inode_mkdir")
int BPF_PROG(inode_mkdir, struct inode *dir, struct dentry *dentry, __u16 mode, int ret)
{
	if (ret)
		return ret;
	if (in_request_folder(dir))
		return no_request(dir);
	return check_name(dir, dentry);
}

SEC("lsm/inode_mknod")
int BPF_PROG(inode_mknod, struct inode *dir, struct dentry *dentry, __u16 mode, __u32 dev, int ret)
{
	if (ret)
		return ret;
	if (in_request_folder(dir))
		return no_request(dir);
	return check_name(dir, dentry);
}

SEC("lsm/inode_symlink")
int BPF_PROG(inode_symlink, struct inode *dir, struct dentry *dentry, const char *old, int ret)
{
	if (ret)
		return ret;
	if (in_request_folder(dir))
		return no_request(dir);
	return check_name(dir, dentry);
}

SEC("lsm/inode_link")
int BPF_PROG(inode_link, struct dentry *old, struct inode *dir, struct dentry *dentry, int ret)
{
	if (ret)
		return ret;
	if (in_request_folder(dir))
		return no_request(dir);
	ret = check_name(dir, dentry);
	return ret ? ret : check_name(old->d_parent->d_inode, old);
}

SEC("lsm/inode_unlink")
int BPF_PROG(inode_unlink, struct inode *dir, struct dentry *dentry, int ret)
{
	return ret ? ret : check_name(dir, dentry);
}

SEC("lsm/inode_rmdir")
int BPF_PROG(inode_rmdir, struct inode *dir, struct dentry *dentry, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret)
		return ret;
	return name_flags(cgid, dir, dentry) || kept(cgid, dentry->d_inode) ? -EPERM : 0;
}

SEC("lsm/inode_rename")
int BPF_PROG(inode_rename, struct inode *old_dir, struct dentry *old, struct inode *new_dir,
	     struct dentry *new, int ret)
{
	__u64 cgid = sandbox();

	if (ret)
		return ret;
	if (in_request_folder(new_dir))
		return no_request(new_dir);
	if (!cgid)
		return 0;
	if (name_flags(cgid, old_dir, old) || name_flags(cgid, new_dir, new))
		return -EPERM;
	return kept(cgid, old->d_inode) || kept(cgid, new->d_inode) ? -EPERM : 0;
}

static __always_inline int check_setattr(struct dentry *dentry, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret)
		return ret;
	return object_flags(cgid, dentry->d_inode) & OBJ_FROZEN ? -EPERM : 0;
}

/* Truncation, mode, owner, times. The hook has one argument more since 6.9: the loader takes what fits. */
SEC("lsm/inode_setattr")
int BPF_PROG(inode_setattr, struct dentry *dentry, void *attr, int ret)
{
	return check_setattr(dentry, ret);
}

SEC("lsm/inode_setattr")
int BPF_PROG(inode_setattr_idmap, void *idmap, struct dentry *dentry, void *attr, int ret)
{
	return check_setattr(dentry, ret);
}

/*
 * A mount put over a listed path, the list, or a folder above, with fusermount's
 * help, would have the next launch see other files than the ones that are there.
 * In a mount namespace of a user namespace of his own an agent hides files from
 * itself only; that is how the mount sandbox is built.
 */
static __always_inline int check_mount(struct dentry *dentry, int ret)
{
	__u64 cgid = sandbox();

	if (!cgid || ret || bpf_get_current_task_btf()->nsproxy->mnt_ns->user_ns->level > 0)
		return ret;
	return object_flags(cgid, dentry->d_inode) ? -EPERM : 0;
}

SEC("lsm/sb_mount")
int BPF_PROG(sb_mount, const char *dev, struct path *path, const char *type, unsigned long flags,
	     void *data, int ret)
{
	return check_mount(path->dentry, ret);
}

SEC("lsm/move_mount")
int BPF_PROG(move_mount, struct path *from, struct path *to, int ret)
{
	return check_mount(to->dentry, ret);
}

SEC("lsm/sb_umount")
int BPF_PROG(sb_umount, struct vfsmount *mnt, int flags, int ret)
{
	return check_mount(mnt->mnt_root, ret);
}

/*
 * For the daemon, which asks for the descriptors of one of its list readers: what
 * is listed, numbered as the other programs see it.
 */
SEC("iter/task_file")
int descriptors(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct descriptor d = {};

	if (!task || !file)
		return 0;
	d.dev = file->f_inode->i_sb->s_dev;
	d.ino = file->f_inode->i_ino;
	d.gen = file->f_inode->i_generation;
	d.fd = ctx->fd;
	d.tgid = task->tgid;
	bpf_seq_write(ctx->meta->seq, &d, sizeof(d));
	return 0;
}
