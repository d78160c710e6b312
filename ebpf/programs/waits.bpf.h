/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a thread waits for: the system call in which it blocks, and what the call works on.
 *
 * Read when the thread is switched out, from the registers that it entered the kernel with. No hook of its own: a
 * thread that does not block pays nothing. User space says which calls take a file or a lock, by number: those differ
 * between architectures. A thread that blocks outside any call is in a page fault, or has been stopped.
 */
#ifndef ROOTWALK_WAITS_BPF_H
#define ROOTWALK_WAITS_BPF_H

#include "rootwalk_types.bpf.h"
#include "sched.h"

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
} RELOCATED;

struct inode {
	u16 i_mode;
	struct super_block *i_sb;
} RELOCATED;

struct file {
	struct inode *f_inode;
	void *private_data;
} RELOCATED;

struct fdtable {
	u32 max_fds;
	struct file **fd;
} RELOCATED;

struct files_struct {
	struct fdtable *fdt;
} RELOCATED;

struct sock_common {
	u16 skc_family;
	u16 skc_dport;
	u32 skc_daddr;
} RELOCATED;

struct sock {
	struct sock_common __sk_common;
} RELOCATED;

struct socket {
	struct sock *sk;
} RELOCATED;

/* The task again, with what only this file reads. */
struct task_struct___waits {
	struct files_struct *files;
} RELOCATED;

/* Of the two, the loader knows the one that the running kernel has; the other's reads are never reached. */
struct pt_regs___arm64 {
	u64 regs[31];
	u64 orig_x0;
	s32 syscallno;
} RELOCATED;

struct pt_regs___x86 {
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
} RELOCATED;

/* A system call as the thread asked for it. */
struct system_call {
	s32 number; /* below 0: none */
	u64 first;
	u64 second;
};

/* struct pollfd of the user; include/uapi/asm-generic/poll.h. */
struct poll_entry {
	s32 fd;
	u32 events;
};

#define S_IFMT 0170000
#define S_IFSOCK 0140000

/* Copy one field of a kernel object whose address may be stale: a failed read leaves 0. */
#define READ(to, from, field) \
	(void)bpf_probe_read_kernel(&(to), sizeof(to), (const void *)__builtin_preserve_access_index(&(from)->field))

INLINE void describe_socket(struct wait *wait, struct file *file)
{
	struct socket *socket = 0;
	struct sock *sock = 0;
	u16 port = 0;

	READ(socket, file, private_data);
	if (!socket)
		return;
	READ(sock, socket, sk);
	if (!sock)
		return;
	READ(wait->family, sock, __sk_common.skc_family);
	READ(port, sock, __sk_common.skc_dport);
	wait->port = (u16)(port << 8 | port >> 8);
	READ(wait->address, sock, __sk_common.skc_daddr);
}

INLINE void describe_file(struct wait *wait, struct task_struct *task, u32 number)
{
	struct task_struct___waits *owner = (struct task_struct___waits *)task;
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **slots = 0, *file = 0;
	struct inode *inode = 0;
	struct super_block *super = 0;
	unsigned long magic = 0;
	u32 limit = 0;

	READ(files, owner, files);
	if (!files)
		return;
	READ(table, files, fdt);
	if (!table)
		return;
	READ(limit, table, max_fds);
	READ(slots, table, fd);
	if (number >= limit || !slots)
		return;
	(void)bpf_probe_read_kernel(&file, sizeof(file), slots + number);
	if (!file)
		return;
	READ(inode, file, f_inode);
	if (!inode)
		return;
	READ(wait->mode, inode, i_mode);
	READ(super, inode, i_sb);
	if (super) {
		READ(wait->device, super, s_dev);
		READ(magic, super, s_magic);
		wait->magic = (u32)magic;
	}
	if ((wait->mode & S_IFMT) == S_IFSOCK)
		describe_socket(wait, file);
}

INLINE struct system_call entered_call(struct task_struct *task)
{
	void *registers = bpf_task_pt_regs(CURRENT(task));
	struct pt_regs___arm64 *arm64 = registers;
	struct pt_regs___x86 *x86 = registers;

	if (HAS_FIELD(arm64->syscallno))
		return (struct system_call){arm64->syscallno, arm64->orig_x0, arm64->regs[1]};
	if (HAS_FIELD(x86->orig_ax))
		return (struct system_call){(s32)x86->orig_ax, x86->di, x86->si};
	return (struct system_call){.number = -1};
}

/* Describe what a thread that is being switched out waits for; it is the current one. */
static __attribute__((noinline)) int describe_wait(struct task_struct *task, struct wait *wait, u8 *kinds)
{
	struct system_call entered = entered_call(task);
	s32 call = entered.number;

	__builtin_memset(wait, 0, __builtin_offsetof(struct wait, waker_tid));
	wait->call = call;
	if (call < 0 || call >= CALL_KINDS)
		return 0;
	u8 kind = kinds[call & (CALL_KINDS - 1)];
	if (kind == CALL_FUTEX) {
		wait->object = entered.first;
	} else if (kind == CALL_FILE) {
		describe_file(wait, task, (u32)entered.first);
	} else if (kind == CALL_POLL && entered.second == 1) {
		struct poll_entry entry = {.fd = -1};

		(void)bpf_probe_read_user(&entry, sizeof(entry), (const void *)entered.first);
		wait->poll_events = (u16)entry.events;
		if (entry.fd >= 0)
			describe_file(wait, task, (u32)entry.fd);
	}
	return 0;
}

#endif
