// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What interrupts steal from the threads of ranks while they run: the scheduler counts that time as the thread's own.
 *
 * Time starts when a handler of a device's interrupt, a soft interrupt or (x86) a vector of the CPU itself begins while
 * a thread of a watched process is the one that runs, and stops when the handler ends. A soft interrupt that is
 * interrupted does not count the other's time: every ns is counted once. Summed for each rank, role of the thread, and
 * interrupt; for a rank's first thread also one event for each 10 ms or so in which 20 us or more were stolen, sent
 * when the first interrupt after that time ends.
 *
 * Does not count: what the processor takes to enter and leave (about 1 us each time), soft interrupts in ksoftirqd (a
 * thread, which the scheduler's program sees), interrupts while another task or nothing ran, NMIs, what a hypervisor
 * steals, and of a handler that calls another one its own part. A soft interrupt that the thread's own system call
 * raised (it sends to itself over loopback) counts too: the kernel does not say whose work it was.
 *
 * Hooks: tp_btf irq_handler_entry/exit, softirq_entry/exit; on x86 also local_timer, reschedule, call_function,
 * call_function_single and irq_work, which are left out where the kernel does not have them. Elsewhere the CPU's own
 * timer and calls are handlers with a number, and counted as such. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.8.
 *
 * Cost: one map lookup at each begin, 0.1 to 0.2 us at each end of an interrupt, on every CPU that is not idle; for a
 * watched thread two more and the clock, 0.5 us at each end, some 400 interrupts a second.
 */
#include "interrupts.h"
#include "counters.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile u64 window_ns = 10000000;
const volatile u64 min_stolen_ns = 20000;

/* One interrupt that has begun in a watched thread, at `begun_ns`; `since_ns` is later by what others took inside it,
 * and 0 when there is none. */
struct frame {
	u64 since_ns;
	u64 begun_ns;
	u64 pid_tgid;
	u32 slot;
	u32 role;
};

/* Level 0: the soft interrupt of this CPU, level 1: the hard one, which may interrupt it. */
enum { LEVEL_SOFT = 0, LEVEL_HARD = 1, LEVELS = 2 };
struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LEVELS);
	__type(key, u32);
	__type(value, struct frame);
} frames SEC(".maps");

/* Sums since load. When full, an interrupt that is not in it yet is lost: COUNTER_TOTALS_FULL. User space removes
 * those of ranks that have ended. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct total_key);
	__type(value, struct total);
} totals SEC(".maps");

/* Process id -> what was not sent yet. When full: COUNTER_WINDOWS_FULL. User space removes those of ended ranks. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct window);
} windows SEC(".maps");

/* struct spell_event, for user space, which polls: at most 100 a second and rank. When full: COUNTER_RING_FULL. */
struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} spells SEC(".maps");

INLINE int begin(u32 level)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	struct target *target = find_target(pid_tgid >> 32);

	if (!target)
		return 0;
	struct frame *frame = bpf_map_lookup_elem(&frames, &level);
	if (!frame)
		return 0;
	frame->pid_tgid = pid_tgid;
	frame->slot = target->slot;
	if (target->flags & TARGET_INHERITED)
		frame->role = ROLE_CHILD;
	else
		frame->role = (u32)pid_tgid == pid_tgid >> 32 ? ROLE_MAIN : ROLE_OTHER;
	frame->since_ns = frame->begun_ns = bpf_ktime_get_ns();
	return 0;
}

INLINE void add_total(struct frame *frame, u32 kind, u32 number, u64 stolen_ns)
{
	struct total_key key = {.slot = frame->slot, .kind = kind, .role = frame->role, .number = number};
	struct total *total = bpf_map_lookup_elem(&totals, &key);

	if (!total) {
		struct total none = {};

		bpf_map_update_elem(&totals, &key, &none, MAP_UPDATE_NOEXIST);
		total = bpf_map_lookup_elem(&totals, &key);
		if (!total) {
			count(COUNTER_TOTALS_FULL);
			return;
		}
	}
	__sync_fetch_and_add(&total->stolen_ns, stolen_ns);
	__sync_fetch_and_add(&total->count, 1);
}

/* A thread runs on one CPU only, so its window has one writer; a hard interrupt that comes while a soft one is at this
 * takes or adds in one instruction, so that no time is told twice. `since` is when the outermost interrupt began: no
 * window ends inside one, else what the whole of it took would be more than the next one's length. */
static __attribute__((noinline)) int add_to_window(struct frame *frame, u64 since, u64 now, u64 stolen_ns)
{
	u32 tgid = frame->pid_tgid >> 32;
	struct window *window = bpf_map_lookup_elem(&windows, &tgid);

	if (!window) {
		struct window fresh = {.start_ns = since, .end_ns = now, .stolen_ns = stolen_ns};

		if (bpf_map_update_elem(&windows, &tgid, &fresh, MAP_UPDATE_NOEXIST))
			count(COUNTER_WINDOWS_FULL);
		return 0;
	}
	if (since >= window->start_ns + window_ns) {
		struct spell_event event = {.start_ns = window->start_ns, .end_ns = window->end_ns, .slot = frame->slot};

		window->start_ns = since;
		event.stolen_ns = __sync_lock_test_and_set(&window->stolen_ns, 0);
		if (event.stolen_ns >= min_stolen_ns &&
		    bpf_ringbuf_output(&spells, &event, sizeof(event), RINGBUF_NO_WAKEUP))
			count(COUNTER_RING_FULL);
	}
	window->end_ns = now;
	__sync_fetch_and_add(&window->stolen_ns, stolen_ns);
	return 0;
}

INLINE int end(u32 level, u32 kind, u32 number)
{
	u32 below = LEVEL_SOFT;
	struct frame *frame = bpf_map_lookup_elem(&frames, &level);

	if (!frame || !frame->since_ns)
		return 0;
	u64 since = frame->since_ns, begun = frame->begun_ns, now = bpf_ktime_get_ns();
	frame->since_ns = 0;
	/* Its end was not seen, or it ended in a hard interrupt that came just now. */
	if (frame->pid_tgid != bpf_get_current_pid_tgid() || now <= since)
		return 0;
	if (level == LEVEL_HARD) {
		struct frame *interrupted = bpf_map_lookup_elem(&frames, &below);

		if (interrupted && interrupted->since_ns && interrupted->pid_tgid == frame->pid_tgid) {
			interrupted->since_ns += now - since;
			begun = interrupted->begun_ns;
		}
	}
	add_total(frame, kind, number, now - since);
	if (frame->role == ROLE_MAIN)
		add_to_window(frame, begun, now, now - since);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int on_irq_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/irq_handler_exit")
int on_irq_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_HARD, ctx[0]);
}

SEC("tp_btf/softirq_entry")
int on_soft_begin(u64 *ctx)
{
	return begin(LEVEL_SOFT);
}

SEC("tp_btf/softirq_exit")
int on_soft_end(u64 *ctx)
{
	return end(LEVEL_SOFT, INTERRUPT_SOFT, ctx[0]);
}

SEC("tp_btf/local_timer_entry")
int on_timer_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/local_timer_exit")
int on_timer_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_LOCAL, LOCAL_TIMER);
}

SEC("tp_btf/reschedule_entry")
int on_resch_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/reschedule_exit")
int on_resch_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_LOCAL, LOCAL_RESCHEDULE);
}

SEC("tp_btf/call_function_entry")
int on_call_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/call_function_exit")
int on_call_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_LOCAL, LOCAL_CALL);
}

SEC("tp_btf/call_function_single_entry")
int on_call1_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/call_function_single_exit")
int on_call1_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_LOCAL, LOCAL_CALL_SINGLE);
}

SEC("tp_btf/irq_work_entry")
int on_work_begin(u64 *ctx)
{
	return begin(LEVEL_HARD);
}

SEC("tp_btf/irq_work_exit")
int on_work_end(u64 *ctx)
{
	return end(LEVEL_HARD, INTERRUPT_LOCAL, LOCAL_WORK);
}
