/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A thread's registers at a probe in a function: the arguments of the call, and its result. */
#ifndef ROOTWALK_REGISTERS_BPF_H
#define ROOTWALK_REGISTERS_BPF_H

#include "rootwalk_types.bpf.h"

#define MAX_ARGUMENT 7

/* Of the two, the loader knows the one that the running kernel has; the other's reads are never reached. */
struct pt_regs___arm64_call {
	u64 regs[31];
	u64 sp;
} RELOCATED;

struct pt_regs___x86_call {
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long sp;
} RELOCATED;

/* struct pt_regs of x86-64, struct user_pt_regs of arm64: user space knows them too, so they stay. */
#define REGISTER_BYTES_X86 168
#define REGISTER_BYTES_ARM64 272

/* What of a thread's registers is asked for. */
struct call_registers {
	u64 arguments[MAX_ARGUMENT + 1]; /* the first is 0: argument 0 is none */
	u64 stack;
	u64 result;
	u64 is_popped; /* x86-64: the return address is on the stack, so that at its return the pointer is above it */
};

INLINE void read_x86(struct pt_regs___x86_call *registers, struct call_registers *to, u32 needs_stack)
{
	to->arguments[1] = registers->di;
	to->arguments[2] = registers->si;
	to->arguments[3] = registers->dx;
	to->arguments[4] = registers->cx;
	to->arguments[5] = registers->r8;
	to->arguments[6] = registers->r9;
	to->stack = registers->sp;
	to->result = registers->ax;
	to->is_popped = 1;
	if (needs_stack)
		(void)bpf_probe_read_user(&to->arguments[7], sizeof(u64), (void *)(to->stack + sizeof(u64)));
}

INLINE void read_arm64(struct pt_regs___arm64_call *registers, struct call_registers *to)
{
	to->arguments[1] = registers->regs[0];
	to->arguments[2] = registers->regs[1];
	to->arguments[3] = registers->regs[2];
	to->arguments[4] = registers->regs[3];
	to->arguments[5] = registers->regs[4];
	to->arguments[6] = registers->regs[5];
	to->arguments[7] = registers->regs[6];
	to->stack = registers->sp;
	to->result = registers->regs[0];
}

/* Copied first: a context may be read at places only that the compiler must not compute. */
INLINE void read_registers(void *ctx, struct call_registers *to, u32 needs_stack)
{
	u64 copy[REGISTER_BYTES_ARM64 / sizeof(u64)] = {};
	struct pt_regs___arm64_call *arm64 = (void *)copy;
	struct pt_regs___x86_call *x86 = (void *)copy;

	if (HAS_FIELD(x86->di)) {
		(void)bpf_probe_read_kernel(copy, REGISTER_BYTES_X86, ctx);
		read_x86(x86, to, needs_stack);
	} else if (HAS_FIELD(arm64->regs)) {
		(void)bpf_probe_read_kernel(copy, REGISTER_BYTES_ARM64, ctx);
		read_arm64(arm64, to);
	}
}

#endif
