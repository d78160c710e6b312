// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Where the time of a training thread goes, and who ran while it waited for a CPU.
 *
 * For every thread of a watched process this keeps the exact partition of time since the thread was first seen:
 * running, runnable (ready and not running), blocked (interruptible), blocked_io (uninterruptible) and stopped.
 * Runnable time starts when the thread is woken, or when it is switched out while still ready; it stops when it is
 * switched in. It is divided by what ran on that CPU meanwhile: another process (a second rank too), the thread's own
 * rank (its process or a child of it), a kernel thread, or nothing at all (a throttled cgroup, a late wake-up).
 * A thread that moves to another CPU while it waits is charged piecewise, one event a piece. Totals by state are always
 * exact; who ran is exact too, except on a CPU that switches every 390 us or faster, where it is exact to about 1 ms.
 *
 * Does not count: interrupts inside another task's slice (they belong to the task), time before a thread is first
 * switched in or woken after its process became a target, hypervisor steal.
 *
 * Hooks: tp_btf sched_switch, sched_waking, sched_wakeup, sched_wakeup_new, sched_migrate_task, sched_process_exit.
 * Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.18 (the fourth argument of sched_switch; bpf_loop is 5.17);
 * sched_5_15.bpf.c is the same for 5.15 to 5.17.
 *
 * Told: each interval from `detail.min_*_ns` on; shorter ones in totals, which are told at a change of the thread's
 * state `detail.*_sum_ns` after the last time, and before an interval that is told by itself.
 *
 * Cost: nothing but a flag test while no process is watched; else one slice (56 bytes) written a switch on every CPU,
 * and for watched threads one map update and, after a wait, a walk over the slices of the wait.
 */
#include "rootwalk_types.bpf.h"
#include "sched.h"
#include "counters.bpf.h"
#include "targets.bpf.h"
#include "waits.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* `detail` is not constant: it changes while the program runs. */
volatile struct sched_detail detail = {.min_runnable_ns = 20000, .min_blocked_ns = 20000};
const volatile struct sched_config config = {};

/* One element: 1 while a process is watched. User space writes it. */
struct {
	__uint(type, MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} enabled SEC(".maps");

/* Thread id -> state and totals (ns). When full, a new thread is not seen: COUNTER_THREADS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct thread_record);
} threads SEC(".maps");

/* CPU -> the last stays of tasks on it, oldest overwritten. Not per-CPU: a wake-up reads another CPU's.
 * The loader sets the number of elements to the number of CPUs. */
struct {
	__uint(type, MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_slices);
} slices SEC(".maps");

/* Finished intervals for user space, which polls. When full, the event is lost: COUNTER_RING_FULL. */
struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 * 1024 * 1024);
} events SEC(".maps");

/* Room to build one event: too large for the stack. Hooks run with interrupts off, so nothing shares it. */
struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sched_event);
} scratch SEC(".maps");

/* Starting value for a thread record, for the same reason. */
struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct thread_record);
} blank SEC(".maps");

INLINE int is_enabled(void)
{
	u32 zero = 0;
	u32 *value = bpf_map_lookup_elem(&enabled, &zero);

	return value && *value;
}

INLINE void copy_comm(char *to, struct task_struct *task)
{
	/* Two words instead of a helper call: this runs at every switch. */
	u64 *from = (u64 *)__builtin_preserve_access_index(&task->comm);

	((u64 *)to)[0] = LOAD(&from[0]);
	((u64 *)to)[1] = LOAD(&from[1]);
}

/* The CPU that a task is on, or was on last. */
INLINE u32 cpu_of(struct task_struct *task)
{
	struct task_struct___before_5_16 *older = (struct task_struct___before_5_16 *)task;
	u32 cpu = 0;

	if (HAS_FIELD(task->thread_info.cpu))
		cpu = task->thread_info.cpu;
	if (HAS_FIELD(older->cpu))
		cpu = older->cpu;
	return cpu;
}

/* The record of a watched thread; made in `state` when it is first seen, and then never of an ending thread. */
INLINE struct thread_record *find_thread(struct task_struct *task, struct target *target, u32 state, u64 now)
{
	u32 tid = task->pid, zero = 0;
	struct thread_record *thread = bpf_map_lookup_elem(&threads, &tid);

	if (thread || task->flags & PF_EXITING)
		return thread;
	struct thread_record *fresh = bpf_map_lookup_elem(&blank, &zero);
	if (!fresh)
		return 0;
	fresh->since_ns = now;
	fresh->told_ns = now;
	fresh->state = state;
	fresh->cpu = cpu_of(task);
	fresh->tgid = task->tgid;
	fresh->slot = target->slot;
	fresh->flags = target->flags | (tid == (u32)task->tgid ? THREAD_LEADER : 0);
	copy_comm(fresh->comm, task);
	if (bpf_map_update_elem(&threads, &tid, fresh, MAP_UPDATE_NOEXIST))
		count(COUNTER_THREADS_FULL);
	return 0;
}

struct walk {
	struct cpu_slices *cpu;
	struct sched_event *event;
	u64 from_ns;
	u64 to_ns;
	u64 head;
	u32 slot;
	u32 tid;
	u32 is_complete; /* the walk reached the beginning of the wait */
	u32 has_merged;	 /* some of what it saw is an estimate */
};

INLINE void add_runner(struct sched_event *event, struct slice *slice, u32 kind, u64 ran_ns)
{
	u64 tid = kind == RUNNER_OWN ? slice->tid : 0;
	u64 name = (u64)slice->tgid << 32 | (u64)kind << 30 | tid, least_ns = ~0ULL;
	u32 place = 0, is_new = 1;

	for (u32 i = 0; i < TOP_SIZE; i++) {
		struct runner *runner = &event->runners[i];

		if (runner->ran_ns && runner->name == name) {
			place = i;
			is_new = 0;
			break;
		}
		if (runner->ran_ns < least_ns) {
			least_ns = runner->ran_ns;
			place = i;
		}
	}
	struct runner *runner = &event->runners[FORGET(place, &event->pad) & (TOP_SIZE - 1)];
	if (!is_new) {
		runner->ran_ns += ran_ns;
		return;
	}
	if (least_ns >= ran_ns)
		return;
	runner->name = name;
	runner->ran_ns = ran_ns;
	((u64 *)runner->comm)[0] = ((u64 *)slice->comm)[0];
	((u64 *)runner->comm)[1] = ((u64 *)slice->comm)[1];
}

static long walk_slice(u32 index, struct walk *walk)
{
	u64 place = walk->head - index;
	struct slice *slice = &walk->cpu->slices[place & (SLICES_PER_CPU - 1)];
	u64 start = slice->start_ns, end = slice->end_ns, ran = slice->ran_ns;

	if (!start) {
		walk->is_complete = 1;
		return 1;
	}
	if (place == walk->cpu->open) {
		end = walk->to_ns;
		if (end > walk->cpu->open_since_ns)
			ran += end - walk->cpu->open_since_ns;
	}
	u64 low = start > walk->from_ns ? start : walk->from_ns;
	u64 high = end < walk->to_ns ? end : walk->to_ns;
	if (high > low && slice->tid != walk->tid) {
		u64 inside = high - low, gaps = end - start > ran ? end - start - ran : 0;
		u32 kind = RUNNER_FOREIGN;

		if (gaps) { /* spread the gaps evenly; they are shorter than MERGE_NS, so this cannot overflow */
			inside -= inside * gaps / (end - start);
			walk->has_merged = 1;
		}
		if (!slice->tid)
			kind = RUNNER_IDLE;
		else if (slice->is_kernel)
			kind = RUNNER_KERNEL;
		else if (slice->slot == walk->slot)
			kind = RUNNER_OWN;
		kind = FORGET(kind, &walk->event->pad);
		walk->event->runner_ns[kind & 3] += inside;
		add_runner(walk->event, slice, kind, inside);
	}
	/* A merged slice that began up to MERGE_NS before the wait may have gone on in it. */
	if (start + MERGE_NS <= walk->from_ns) {
		walk->is_complete = 1;
		return 1;
	}
	return 0;
}

/* Something always runs on a CPU: estimates from merged slices are scaled to the wait. */
INLINE void scale_runners(struct sched_event *event, u64 wait_ns)
{
	u64 sum_ns = 0;

	for (u32 i = 0; i < 4; i++)
		sum_ns += event->runner_ns[i];
	if (!sum_ns || wait_ns > 1000000000 || sum_ns > 4 * wait_ns)
		return; /* the products below would not fit; a second is long enough for the estimate to be good */
	for (u32 i = 0; i < 4; i++)
		event->runner_ns[i] = event->runner_ns[i] * wait_ns / sum_ns;
	for (u32 i = 0; i < TOP_SIZE; i++)
		event->runners[i].ran_ns = event->runners[i].ran_ns * wait_ns / sum_ns;
}

INLINE struct sched_event *begin_event(struct task_struct *task, struct thread_record *thread, u64 now)
{
	u32 zero = 0;
	struct sched_event *event = bpf_map_lookup_elem(&scratch, &zero);

	if (!event)
		return 0;
	event->start_ns = thread->since_ns;
	event->end_ns = now;
	event->tid = task->pid;
	event->tgid = task->tgid;
	event->slot = thread->slot;
	event->cpu = thread->cpu;
	event->state = thread->state;
	event->flags = thread->flags;
	event->runner_count = 0;
	event->pad = 0;
	copy_comm(event->comm, task);
	for (u32 i = 0; i < 4; i++)
		event->runner_ns[i] = 0;
	return event;
}

INLINE void send_event(struct sched_event *event, u32 runner_count)
{
	u64 size = sizeof(struct sched_event) - sizeof(event->runners);

	if (event->flags & THREAD_WAIT)
		size += sizeof(struct wait);
	else if (runner_count <= TOP_SIZE)
		size += runner_count * sizeof(struct runner);
	event->runner_count = runner_count;
	if (bpf_ringbuf_output(&events, event, size, RINGBUF_NO_WAKEUP))
		count(COUNTER_RING_FULL);
}

INLINE void send_totals(struct task_struct *task, struct thread_record *thread, u32 state, u64 now)
{
	struct exit_event event = {.start_ns = thread->since_ns, .end_ns = now, .tid = task->pid, .tgid = task->tgid,
				   .slot = thread->slot, .cpu = thread->cpu, .state = state,
				   .flags = thread->flags, .totals = thread->totals};

	if (state == STATE_EXITED && thread->state == STATE_RUNNING)
		event.totals.running_ns += now - thread->since_ns;
	copy_comm(event.comm, task);
	if (bpf_ringbuf_output(&events, &event, sizeof(event), RINGBUF_NO_WAKEUP))
		count(COUNTER_RING_FULL);
}

/* The thread's totals are complete up to `now`: tell them if it is time, or if what comes next is told by itself, so
 * that what user space knows of a thread never overlaps. A thread that only ran since has nothing to tell. */
static __attribute__((noinline)) int tell_totals(struct task_struct *task, struct thread_record *thread, u64 now,
						 u32 is_due)
{
	u64 every_ns = detail.other_sum_ns;

	if (thread->flags & TARGET_INHERITED)
		every_ns = detail.child_sum_ns;
	else if (thread->flags & THREAD_LEADER)
		every_ns = detail.first_sum_ns;
	if (!every_ns || !thread->has_untold || (!is_due && now - thread->told_ns < every_ns))
		return 0;
	thread->told_ns = now;
	thread->has_untold = 0;
	send_totals(task, thread, STATE_SUMMED, now);
	return 0;
}

/* The thread stops waiting on the CPU in its record: divide the wait by what ran there. */
static __attribute__((noinline)) int end_wait(struct task_struct *task, struct thread_record *thread, u64 now)
{
	u32 cpu = thread->cpu;
	struct sched_event *event = begin_event(task, thread, now);
	struct cpu_slices *ring = bpf_map_lookup_elem(&slices, &cpu);

	if (!event || now <= thread->since_ns)
		return 0;
	for (u32 i = 0; i < TOP_SIZE; i++)
		event->runners[i].ran_ns = 0;
	if (ring) {
		struct walk walk = {.cpu = ring, .event = event, .from_ns = thread->since_ns, .to_ns = now,
				    .head = ring->head, .slot = thread->slot, .tid = event->tid};

		bpf_loop(SLICES_PER_CPU, walk_slice, &walk, 0);
		if (!walk.is_complete)
			count(COUNTER_LOST_SLICES);
		else if (FORGET(walk.has_merged, &event->pad))
			scale_runners(event, now - thread->since_ns);
	}
	u32 is_long = now - thread->since_ns >= detail.min_runnable_ns;
	if (is_long)
		tell_totals(task, thread, thread->since_ns, 1);
	thread->totals.runnable_ns += now - thread->since_ns;
	for (u32 i = 0; i < 4; i++)
		thread->totals.runner_ns[i] += event->runner_ns[i];
	if (!is_long) {
		thread->has_untold = 1;
		return 0;
	}
	thread->told_ns = now;
	u32 runner_count = 0;
	for (u32 i = 0; i < TOP_SIZE; i++)
		if (event->runners[i].ran_ns)
			runner_count = i + 1;
	send_event(event, runner_count);
	return 0;
}

/* Whether the blocked intervals of a thread are sent one by one. */
INLINE u32 is_told(struct thread_record *thread)
{
	return thread->flags & (THREAD_LEADER | TARGET_INHERITED);
}

/* The thread stops being blocked or stopped. Sent for the first thread of a rank's own process: its other threads sleep
 * by design, and their sleep delays nobody. Sent for all threads of its children: between the events they ran, and
 * that is what tells a loader that works from one that waits. */
INLINE void end_block(struct task_struct *task, struct thread_record *thread, u64 now)
{
	u64 blocked_ns = now - thread->since_ns;
	u32 is_long = is_told(thread) && blocked_ns >= detail.min_blocked_ns;

	if (is_long)
		tell_totals(task, thread, thread->since_ns, 1);
	if (thread->state == STATE_BLOCKED_IO)
		thread->totals.blocked_io_ns += blocked_ns;
	else if (thread->state == STATE_STOPPED)
		thread->totals.stopped_ns += blocked_ns;
	else
		thread->totals.blocked_ns += blocked_ns;
	if (!is_long) {
		thread->has_untold = 1;
		return;
	}
	thread->told_ns = now;
	struct sched_event *event = begin_event(task, thread, now);
	if (!event)
		return;
	event->flags |= THREAD_WAIT;
	event->wait = thread->wait;
	send_event(event, 0);
}

INLINE void switch_out(struct task_struct *task, struct thread_record *thread, u32 is_ready, u32 task_state, u64 now)
{
	if (thread->state == STATE_RUNNING)
		thread->totals.running_ns += now - thread->since_ns;
	thread->totals.switches += 1;
	thread->since_ns = now;
	thread->cpu = bpf_get_smp_processor_id();
	copy_comm(thread->comm, task); /* libraries name their threads after they start */
	if (is_ready)
		thread->state = STATE_RUNNABLE;
	else if (task_state & (TASK_STOPPED_OR_TRACED | TASK_FROZEN))
		thread->state = STATE_STOPPED;
	else if (task_state & TASK_UNINTERRUPTIBLE)
		thread->state = STATE_BLOCKED_IO;
	else if (task->jobctl & JOBCTL_TRAP_FREEZE)
		thread->state = STATE_STOPPED; /* by version 2 of control groups: to be frozen is a signal, which ends other sleeps */
	else
		thread->state = STATE_BLOCKED;
	if (!is_ready && is_told(thread))
		describe_wait(task, &thread->wait, (u8 *)config.call_kinds);
	tell_totals(task, thread, now, 0);
}

INLINE void switch_in(struct task_struct *task, struct thread_record *thread, u64 now)
{
	if (thread->state == STATE_RUNNABLE)
		end_wait(task, thread, now);
	else if (thread->state != STATE_RUNNING)
		end_block(task, thread, now);
	thread->state = STATE_RUNNING;
	thread->since_ns = now;
	thread->cpu = bpf_get_smp_processor_id();
	tell_totals(task, thread, now, 0);
	thread->wait.waker_tid = 0; /* not in describe_wait: the next waker may come before the thread is off its CPU */
}

/* Close the running slice; return whether its task is watched. */
INLINE u32 end_stay(struct cpu_slices *ring, u64 now)
{
	struct slice *slice = &ring->slices[ring->open & (SLICES_PER_CPU - 1)];

	slice->end_ns = now;
	slice->ran_ns += now - ring->open_since_ns;
	return slice->slot;
}

/* The place of a recent slice that a stay of this task may be merged into, or that of a new one. */
INLINE u64 place_of_stay(struct cpu_slices *ring, struct task_struct *task, u32 slot, u64 now)
{
	u64 oldest = ring->slices[(ring->head + 1) & (SLICES_PER_CPU - 1)].start_ns;

	if (!oldest || now - oldest >= SHORT_MEMORY_NS)
		return ring->head + 1;
	for (u32 i = 0; i < MERGE_DEPTH; i++) {
		u64 place = ring->head - i;
		struct slice *slice = &ring->slices[place & (SLICES_PER_CPU - 1)];

		if (now - slice->start_ns >= MERGE_NS)
			break;
		if (slice->slot == slot && slice->tgid == (u32)task->tgid && (!slot || slice->tid == (u32)task->pid))
			return place;
	}
	return ring->head + 1;
}

INLINE void begin_stay(struct cpu_slices *ring, struct task_struct *task, u32 slot, u64 now)
{
	u64 place = place_of_stay(ring, task, slot, now);
	struct slice *slice = &ring->slices[place & (SLICES_PER_CPU - 1)];

	ring->open = place;
	ring->open_since_ns = now;
	ring->open_tid = (u32)task->pid;
	if (place != ring->head + 1)
		return;
	ring->head = place;
	slice->start_ns = now;
	slice->end_ns = now;
	slice->ran_ns = 0;
	slice->tgid = task->tgid;
	slice->tid = task->pid;
	slice->slot = slot;
	slice->is_kernel = !!(task->flags & PF_KTHREAD);
	copy_comm(slice->comm, task);
}

/* Another task leaves the CPU than the one that was told to have come: a switch between them was not told. Seen under a
 * hypervisor (6.18 under PVM), where one CPU told none of those from its idle task; without this, whoever was woken there
 * would be ready to run to its next sleep. The task that leaves came when its own runtime says, at the earliest when the
 * other came. Of how that one left nothing is known: it runs on to the next thing that is told of it. */
INLINE void make_up(struct cpu_slices *ring, struct task_struct *task, u64 now)
{
	u64 ran_ns = task->se.sum_exec_runtime - task->se.prev_sum_exec_runtime;
	u64 came_ns = now - ring->open_since_ns > ran_ns ? now - ran_ns : ring->open_since_ns;
	struct target *target = find_target(task->tgid);

	count(COUNTER_MADE_UP);
	end_stay(ring, came_ns);
	begin_stay(ring, task, target ? target->slot : 0, came_ns);
	if (!target)
		return;
	struct thread_record *thread = find_thread(task, target, STATE_RUNNING, came_ns);
	if (thread && thread->state != STATE_RUNNING)
		switch_in(task, thread, came_ns > thread->since_ns ? came_ns : thread->since_ns);
}

SEC("tp_btf/sched_switch")
int on_switch(u64 *ctx)
{
	u32 is_preempted = (u32)ctx[0] & 1;
	struct task_struct *previous = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
#ifdef BEFORE_5_18
	u32 task_state = previous->__state; /* a waker may have overwritten it: then a wait for a disk is one for anything */
#else
	u32 task_state = (u32)ctx[3];
#endif
	u32 cpu = bpf_get_smp_processor_id();

	if (!is_enabled())
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct cpu_slices *ring = bpf_map_lookup_elem(&slices, &cpu);
	if (!ring)
		return 0;
	struct target *target = find_target(next->tgid);
	if (ring->open_tid != (u32)previous->pid && ring->open_since_ns)
		make_up(ring, previous, now);
	u32 was_watched = end_stay(ring, now);

	begin_stay(ring, next, target ? target->slot : 0, now);
	if (was_watched && !(task_state & TASK_DEAD_ANY)) {
		u32 tid = previous->pid;
		struct thread_record *thread = bpf_map_lookup_elem(&threads, &tid);

		if (thread)
			switch_out(previous, thread, is_preempted || !task_state, task_state, now);
	}
	if (target) {
		struct thread_record *thread = find_thread(next, target, STATE_RUNNING, now);

		if (thread)
			switch_in(next, thread, now);
	}
	return 0;
}

INLINE int wake(struct task_struct *task)
{
	if (!is_enabled())
		return 0;
	struct target *target = find_target(task->tgid);
	if (!target)
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct thread_record *thread = find_thread(task, target, STATE_RUNNABLE, now);
	if (!thread || thread->state < STATE_BLOCKED)
		return 0;
	end_block(task, thread, now);
	thread->state = STATE_RUNNABLE;
	thread->since_ns = now;
	thread->cpu = cpu_of(task);
	tell_totals(task, thread, now, 0);
	return 0;
}

/* Runs where the waker runs; sched_wakeup may run on the CPU of the one that is woken, in whatever was there. */
SEC("tp_btf/sched_waking")
int on_waking(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0], *waker = bpf_get_current_task_btf();
	u32 tid = task->pid;

	if (!is_enabled() || !find_target(task->tgid))
		return 0;
	struct thread_record *thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread || !is_told(thread))
		return 0;
	thread->wait.waker_tid = waker->pid;
	thread->wait.waker_tgid = waker->tgid;
	copy_comm(thread->wait.waker_comm, waker);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(u64 *ctx)
{
	return wake((struct task_struct *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int on_wakeup_new(u64 *ctx)
{
	return wake((struct task_struct *)ctx[0]);
}

SEC("tp_btf/sched_migrate_task")
int on_migrate(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 cpu = (u32)ctx[1], tid = task->pid;

	if (!is_enabled() || !find_target(task->tgid))
		return 0;
	struct thread_record *thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread)
		return 0;
	if (thread->state == STATE_RUNNABLE) {
		u64 now = bpf_ktime_get_ns();

		end_wait(task, thread, now);
		thread->since_ns = now;
	}
	thread->cpu = cpu;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tid = task->pid;
	struct thread_record *thread = bpf_map_lookup_elem(&threads, &tid);

	if (thread) {
		send_totals(task, thread, STATE_EXITED, bpf_ktime_get_ns());
		bpf_map_delete_elem(&threads, &tid);
	}
	return 0;
}
