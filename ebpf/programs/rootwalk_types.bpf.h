/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Kernel types, only the fields that are read. The loader moves every access to where the running kernel's BTF has
 * the field (CO-RE), so the layout here means nothing. */
#ifndef ROOTWALK_TYPES_BPF_H
#define ROOTWALK_TYPES_BPF_H

#include "rootwalk_bpf.h"

#define RELOCATED __attribute__((preserve_access_index))

struct thread_info {
	u32 cpu;
} RELOCATED;

struct sched_entity {
	u64 sum_exec_runtime;
	u64 prev_sum_exec_runtime; /* when it was last given the CPU */
} RELOCATED;

struct task_struct {
	struct thread_info thread_info;
	struct sched_entity se;
	u32 __state;
	u32 flags;
	s32 pid;
	s32 tgid;
	s32 exit_code;
	u64 jobctl;
	struct task_struct *group_leader;
	char comm[16];
} RELOCATED;

/* Before 5.16 the CPU of a task lay beside its thread_info. */
struct task_struct___before_5_16 {
	u32 cpu;
} RELOCATED;

/* task_struct.flags and the states that sched_switch reports; include/linux/sched.h, stable since 4.14. */
#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED_OR_TRACED 0x000c
#define TASK_DEAD_ANY 0x00b0
#define TASK_FROZEN 0x8000
/* task_struct.jobctl; include/linux/sched/jobctl.h, stable since 5.2. */
#define JOBCTL_TRAP_FREEZE 0x00800000

#endif
