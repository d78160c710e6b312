// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What is done to the processes of ranks: signals with their sender, ends, kills for memory.
 *
 * One event for each signal of `signals` that a watched process, or a thread of it, was sent and did not ignore
 * (SIGCONT always: it acts even where it is ignored); for each end of a rank's process, and of a child of it that did
 * not end with 0; and for each watched process that the kernel chooses to kill for memory. The sender is the process
 * that made the call; none where the kernel sent by itself (a fault, a limit, a terminal, a timer).
 *
 * Does not count: signals that were pending already, what seccomp or a fatal fault does without sending, processes that
 * only share the memory of one that is killed for it, a first thread that ends while others of its process go on.
 *
 * Hooks: tp_btf signal_generate, sched_process_fork, sched_process_exit; raw_tp mark_victim, whose argument was the
 * thread's id before 6.9 and is its task since. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.11.
 *
 * Cost: 0.05 us for a signal that nobody asks for, such as SIGCHLD; one map lookup for any other, for a fork and for an
 * end, of any process; 0.2 us for what is told.
 */
#include "rootwalk_types.bpf.h"
#include "lifecycle.h"
#include "counters.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Bit n: signal n is told. */
const volatile u64 signals = 0;

struct kernel_siginfo {
	s32 si_code;
} RELOCATED;

/* The event of the tracepoint, for its field that came with the new argument. */
struct trace_event_raw_mark_victim {
	u32 uid;
} RELOCATED;

/* include/linux/sched/signal.h: values in place of a pointer; include/trace/events/signal.h: results. */
#define SEND_SIG_PRIV 1
enum { SIGNAL_DELIVERED = 0, SIGNAL_IGNORED = 1, SIGNAL_LOSE_INFO = 4 };
/* include/uapi/asm-generic/siginfo.h: by kill, by sigqueue, by tgkill. Everything else comes from the kernel. */
enum { SI_USER = 0, SI_QUEUE = -1, SI_TKILL = -6 };
#define SIGCONT 18

/* Process id -> rank, until its end is told: `targets` has forgotten it by then. When full: COUNTER_PROCESSES_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct target);
} living SEC(".maps");

/* struct lifecycle_event, for user space, which polls. When full: COUNTER_RING_FULL. */
struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} lifecycles SEC(".maps");

INLINE void send(struct lifecycle_event *event, struct target *target)
{
	event->time_ns = bpf_ktime_get_ns();
	event->slot = target->slot;
	event->flags = target->flags;
	if (bpf_ringbuf_output(&lifecycles, event, sizeof(*event), RINGBUF_NO_WAKEUP))
		count(COUNTER_RING_FULL);
}

INLINE int is_sent_by_a_process(struct kernel_siginfo *info)
{
	if ((u64)info <= SEND_SIG_PRIV)
		return (u64)info != SEND_SIG_PRIV;
	return info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
}

SEC("tp_btf/signal_generate")
int on_signal(u64 *ctx)
{
	u32 number = ctx[0];
	struct kernel_siginfo *info = (struct kernel_siginfo *)ctx[1];
	struct task_struct *task = (struct task_struct *)ctx[2];
	u32 result = ctx[4];

	if (number >= 64 || !(signals >> number & 1))
		return 0;
	if (result != SIGNAL_DELIVERED && result != SIGNAL_LOSE_INFO && !(result == SIGNAL_IGNORED && number == SIGCONT))
		return 0;
	struct target *target = find_target(task->tgid);
	if (!target)
		return 0;
	struct lifecycle_event event = {.kind = LIFECYCLE_SIGNAL, .pid = task->tgid, .number = number};
	if (is_sent_by_a_process(info)) {
		struct task_struct *current = bpf_get_current_task_btf();
		struct task_struct *sender = current->group_leader;
		struct target *of_rank = find_target(sender->tgid);
		u64 *name = (u64 *)__builtin_preserve_access_index(&sender->comm);

		event.sender_pid = sender->tgid;
		event.sender_slot = of_rank ? of_rank->slot : 0;
		((u64 *)event.sender_name)[0] = name[0];
		((u64 *)event.sender_name)[1] = name[1];
	}
	send(&event, target);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int on_born(u64 *ctx)
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
	if (bpf_map_update_elem(&living, &tgid, &inherited, MAP_UPDATE_ANY))
		count(COUNTER_PROCESSES_FULL);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_gone(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tgid = task->tgid;

	if (tgid != (u32)task->pid)
		return 0;
	struct target *target = bpf_map_lookup_elem(&living, &tgid);
	if (!target)
		return 0;
	struct lifecycle_event event = {.kind = LIFECYCLE_END, .pid = tgid, .number = task->exit_code};
	if (event.number || !(target->flags & TARGET_INHERITED))
		send(&event, target);
	bpf_map_delete_elem(&living, &tgid);
	return 0;
}

SEC("raw_tp/mark_victim")
int on_victim(u64 *ctx)
{
	u32 tgid = 0;

	if (HAS_FIELD(((struct trace_event_raw_mark_victim *)0)->uid))
		bpf_probe_read_kernel(&tgid, sizeof(tgid), &((struct task_struct *)ctx[0])->tgid);
	else
		tgid = ctx[0];
	struct target *target = find_target(tgid);
	if (!target)
		return 0;
	struct lifecycle_event event = {.kind = LIFECYCLE_OOM, .pid = tgid};
	send(&event, target);
	return 0;
}
