// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Which processes belong to a rank: its children are followed from their first moment, and forgotten at their end.
 *
 * Counts nothing by itself. User space writes the ranks into the map; a child takes its parent's rank at fork, before
 * it runs for the first time, and loses it when its last thread that leads it ends. A child that was there before its
 * rank was written is user space's business.
 *
 * Hooks: tp_btf sched_process_fork, sched_process_exit. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.8.
 *
 * Cost: one map lookup a fork and an exit, of any process.
 */
#include "rootwalk_types.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	u32 tgid = child->tgid;

	if (tgid == (u32)parent->tgid)
		return 0;
	struct target *target = find_target(parent->tgid);
	if (!target)
		return 0;
	struct target inherited = {.slot = target->slot, .flags = target->flags | TARGET_INHERITED};
	bpf_map_update_elem(&targets, &tgid, &inherited, MAP_UPDATE_NOEXIST);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_end(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tid = task->pid;

	if (tid == (u32)task->tgid)
		bpf_map_delete_elem(&targets, &tid);
	return 0;
}
