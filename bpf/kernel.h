/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel structures that agent_sandbox.bpf.c reads, each with the fields it
 * reads and no others: the loader moves every access to where the running
 * kernel's BTF says the field is (CO-RE), so order and size here mean nothing.
 */
#ifndef KERNEL_H
#define KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef __u16 __sum16;
typedef _Bool bool;

/* include/uapi/linux/bpf.h */
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_LRU_HASH = 9 };
enum { BPF_ANY = 0, BPF_F_NO_PREALLOC = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define EPERM 1
#define EDQUOT 122
#define S_IFMT 0170000
#define S_IFREG 0100000
#define FMODE_WRITE 2              /* include/linux/fs.h */
#define PTRACE_MODE_ATTACH 2       /* include/linux/ptrace.h */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct user_namespace {
	struct user_namespace *parent;
	int level;
	struct {
		__u32 val;
	} owner;
};

struct cred {
	struct user_namespace *user_ns;
};

struct mnt_namespace {
	struct user_namespace *user_ns;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
};

struct task_struct {
	int tgid;
	struct nsproxy *nsproxy;
	struct css_set *cgroups;
	const struct cred *cred;
};

struct super_block {
	__u32 s_dev;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct inode {
	__u16 i_mode;
	unsigned long i_ino;
	__u32 i_generation;
	struct super_block *i_sb;
	struct hlist_head i_dentry;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
	union {
		struct hlist_node d_alias;
	} d_u;
};

struct path {
	struct dentry *dentry;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
	__u32 f_mode;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

#pragma clang attribute pop

#endif
