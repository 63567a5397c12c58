/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The maps' keys and values. internal/denylist and internal/bpf have the same in Go; the
 * daemon refuses to start when the sizes differ.
 */
#ifndef AGENT_SANDBOX_H
#define AGENT_SANDBOX_H

/*
 * An object of the file system as the kernel numbers it, in one sandbox. Packed: the
 * map hashes the key byte by byte, twice for every open in a sandbox.
 */
struct deny_key {
	__u64 cgid; /* id of the uid's cgroup */
	__u64 ino;
	__u32 dev;  /* super block's s_dev: stat's st_dev is another number on btrfs and overlayfs */
} __attribute__((packed));

/* Words of filter_map: 64 bits each. */
#define FILTER_SHIFT 10
#define FILTER_WORDS (1 << FILTER_SHIFT)

/* A name in a folder. Two names with one hash only deny too much. */
struct name_key {
	__u64 cgid;
	__u64 dev; /* of the folder */
	__u64 ino; /* of the folder */
	__u64 hash; /* name_hash of the name */
};

struct deny_value {
	__u32 flags;
	__u32 gen;  /* i_generation: an inode number is used again for another file */
	__u64 line; /* digest of the list line it comes from; means nothing here */
};

/* Of an object. */
#define OBJ_DENY 1   /* file: not to be opened */
#define OBJ_ANYGEN 2 /* of any generation: two listed files share device and inode (btrfs subvolumes) */
#define OBJ_NAMES 4  /* folder: has keys in name_map */
#define OBJ_KEEP 8   /* folder above a listed path: not to be renamed or removed */
#define OBJ_FROZEN 16 /* the user's list or its folder: not to be changed */

/* Of a name. */
#define NAME_DENY 1 /* what has this name is not to be opened; the name itself stays as it is */
#define NAME_HOLD 2 /* the name stays as it is */

/* Set by the daemon in the map that backs the programs' variables. */
struct settings {
	__u64 parent;  /* id of the cgroup agent-sandbox-exec */
	__u64 readers; /* id of the cgroup of the daemon's list readers */
	__u64 req_dev; /* device of the request folder, 0 for none */
	__u64 req_ino; /* its inode */
};

/* What a reader of a list opened, in the order in which the hook saw it. */
struct seen_key {
	__u32 tgid;
	__u32 n; /* from 1; 0 holds the count */
};

struct seen_value {
	__u64 dev;
	__u64 ino;
	__u64 dir_dev;
	__u64 dir_ino;
	__u32 gen;
	__u32 dir_gen;
};

/* Requests a user may still make at once. */
struct bucket {
	__u64 since; /* bpf_ktime_get_ns */
	__u64 tokens;
};

/* One record of the iterator over a reader's descriptors. */
struct descriptor {
	__u64 dev;
	__u64 ino;
	__u32 gen;
	__u32 fd;
	__u64 tgid;
};

#endif
