// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Which code the threads of ranks and of their children run, and which they wait in.
 *
 * On the CPU: at every tick of a software event (CPU clock, one per CPU, opened and attached by user space) the stack
 * of the thread that runs. Off the CPU: the stack of a process's first thread as it leaves the CPU to wait, and the
 * time until it is woken; the time that it then waits for a CPU is not in it. A stack is three chains: kernel, user
 * (unwind.bpf.h), and Python, found by walking the interpreter's own state. A chain is kept once, under its hash.
 *
 * Does not count: preemption, other threads' waits, waits that go on. A thread that waits more often than
 * `config.waits_window` times in 100 ms gets its time without a stack. CPython's sub-interpreters are not walked, nor
 * more than 128 frames, nor more than 64 of its threads.
 *
 * A wait that has ended tells which thread of a watched process ran where it was woken, if one did: that of the lock's
 * holder, of a worker, of another rank. An interrupt is told as the thread that it interrupted; of what else ran there
 * nothing is told, else strangers' threads would make samples of their own.
 *
 * What is known of a process's interpreter is true of the children that it forks, until they become another program: it
 * is handed on at the fork, so that a child that waits at once has its functions too.
 *
 * Hooks: perf_event; tp_btf sched_switch, sched_waking, sched_process_fork, sched_process_exec, sched_process_exit.
 * Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.15.
 *
 * Cost: a map lookup a tick and a CPU; some 10 us a sample; a map lookup each switch and wake-up of any thread, and of
 * a watched first thread some 10 us a wait that gets a stack. A map lookup each fork, exec and end of a process.
 */
#include "rootwalk_types.bpf.h"
#include "stacks.h"
#include "counters.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define WINDOW_NS 100000000
#define MAX_THREADS 64
#define OWNED_BY_C 3 /* FRAME_OWNED_BY_CSTACK: stands for a call from C, runs no code */
#define HASH_SEED 14695981039346656037ULL
#define HASH_PRIME 1099511628211ULL
#define UPID_BYTES 16 /* struct upid: a number and a pointer */

static long (*bpf_get_stack)(void *ctx, void *to, u32 size, u64 flags) = (void *)67;

struct upid {
	s32 nr;
} RELOCATED;

struct pid {
	u32 level;
	struct upid numbers[1];
} RELOCATED;

struct task_struct___with_pid {
	struct pid *thread_pid;
} RELOCATED;

const volatile struct stack_config config = {.slice_ns = 1000000, .has_off_cpu = 1, .waits_window = 20};

/* Process id -> its interpreter. User space writes it; forked children take it from their parents. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct interpreter);
} interpreters SEC(".maps");

/* Slot of a rank -> anything: its stacks are not taken. User space writes it. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} left_out SEC(".maps");

/* Process and thread id -> address of the interpreter's state of the thread, which tells by itself whose it is. */
struct {
	__uint(type, MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} states SEC(".maps");

/* User space takes everything out twice a second, and sets the number by that of the CPUs. When full, a sample is lost:
 * COUNTER_SAMPLES_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct stack_key);
	__type(value, struct stack_value);
} samples SEC(".maps");

/* Hash of a chain -> the chain; 8 MB. What is not seen again makes room. */
struct {
	__uint(type, MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct chain);
} chains SEC(".maps");

/* First thread -> its wait. */
struct {
	__uint(type, MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct stack_wait);
} waits SEC(".maps");

/* Room to build a chain; hooks run with interrupts off, so nothing shares it. */
struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct chain);
} scratch SEC(".maps");

/* The target that a process is, if its stacks are wanted. */
INLINE struct target *find_wanted(u32 tgid)
{
	struct target *target = find_target(tgid);

	if (!target)
		return 0;
	u32 slot = target->slot;
	return bpf_map_lookup_elem(&left_out, &slot) ? 0 : target;
}

/* Returns 0 where the address cannot be read. */
INLINE u64 read_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

INLINE u64 add_to_hash(u64 hash, u64 word)
{
	hash = (hash ^ (word & 0xffffffff)) * HASH_PRIME;
	return (hash ^ (word >> 32)) * HASH_PRIME;
}

/* Keeps a chain and returns its name; addresses of two processes mean different things: the process is part of it. */
static __attribute__((noinline)) u64 keep_chain(struct chain *chain, u32 tgid)
{
	u64 hash = add_to_hash(HASH_SEED, tgid);

	if (!chain || !chain->count)
		return 0;
	for (u32 i = 0; i < CHAIN_FRAMES; i++) {
		if (i >= chain->count)
			break;
		hash = add_to_hash(hash, chain->at[i]);
	}
	if (!bpf_map_lookup_elem(&chains, &hash))
		bpf_map_update_elem(&chains, &hash, chain, MAP_UPDATE_ANY);
	return hash;
}

#include "unwind.bpf.h"

INLINE u64 walk_kernel(void *ctx, struct chain *chain)
{
	long bytes = bpf_get_stack(ctx, chain->at, sizeof(chain->at), 0);

	if (bytes <= 0)
		return 0;
	chain->count = (u32)bytes / sizeof(u64);
	chain->flags = chain->count >= CHAIN_FRAMES ? CHAIN_CUT : 0;
	return keep_chain(chain, 0);
}

/* The number by which the thread knows itself: that of its own pid namespace. */
INLINE u32 own_thread_id(u32 tid)
{
	struct task_struct___with_pid *task = bpf_get_current_task_btf();
	struct pid *pid = task->thread_pid;
	u32 level = pid ? pid->level : 0, number = 0;

	if (!level || level > 32)
		return tid;
	bpf_probe_read_kernel(&number, sizeof(number), (void *)pid->numbers + level * UPID_BYTES);
	return number;
}

/* The interpreter's state of the current thread; 0 where it has none. The only thread of a child that was forked a
 * moment ago still goes by its parent's number. */
INLINE u64 find_state(struct interpreter *python, u64 id, u32 own)
{
	u64 *known = bpf_map_lookup_elem(&states, &id);

	if (known && read_word(*known + python->thread_native_id) == own)
		return *known;
	u64 first = read_word(python->runtime + python->interpreters_head);
	if (!first)
		return 0;
	u64 state = read_word(first + python->threads_head), only = state;
	for (u32 i = 0; i < MAX_THREADS && state; i++) {
		if (read_word(state + python->thread_native_id) == own) {
			bpf_map_update_elem(&states, &id, &state, MAP_UPDATE_ANY);
			return state;
		}
		state = read_word(state + python->thread_next);
		if (state)
			only = 0;
	}
	return (u32)id == id >> 32 ? only : 0;
}

static __attribute__((noinline)) u64 walk_python(struct chain *chain, u64 id)
{
	u32 tgid = id >> 32, is_whole = 0;
	struct interpreter *python = bpf_map_lookup_elem(&interpreters, &tgid);

	if (!python || !chain)
		return 0;
	u64 state = find_state(python, id, own_thread_id((u32)id));
	if (!state) {
		count(COUNTER_THREAD_UNKNOWN);
		return 0;
	}
	u64 frame = read_word(state + python->thread_frame);
	if (frame && python->frame_in_cframe != NO_CFRAME)
		frame = read_word(frame + python->frame_in_cframe);
	/* The number of frames is kept in memory, where the verifier does not follow its every value. Frames that stand for
	 * calls from C are among those that are walked. */
	chain->count = 0;
	for (u32 i = 0; i < 2 * CHAIN_FRAMES; i++) {
		u8 owner = 0;

		if (!frame) {
			is_whole = 1;
			break;
		}
		u32 filled = *(volatile u32 *)&chain->count;
		if (filled >= CHAIN_FRAMES)
			break;
		if (bpf_probe_read_user(&owner, sizeof(owner), (void *)(frame + python->frame_owner))) {
			count(COUNTER_PYTHON_UNREAD);
			break;
		}
		u64 code = read_word(frame + python->frame_code);
		if (code && owner < OWNED_BY_C) {
			chain->at[filled & (CHAIN_FRAMES - 1)] = code;
			chain->count = filled + 1;
		}
		frame = read_word(frame + python->frame_previous);
	}
	chain->flags = is_whole ? 0 : CHAIN_CUT;
	return keep_chain(chain, tgid);
}

INLINE void take_chains(void *ctx, struct stack_key *key, u64 id)
{
	u32 zero = 0;
	struct chain *chain = bpf_map_lookup_elem(&scratch, &zero);

	if (!chain)
		return;
	key->kernel = walk_kernel(ctx, chain);
	key->user = walk_user(chain, key->tgid);
	key->python = walk_python(chain, id);
}

INLINE void begin_key(struct stack_key *key, struct target *target, u64 id, u64 now, u32 kind)
{
	key->tgid = id >> 32;
	key->tid = (u32)id;
	key->slot = target->slot;
	key->kind = kind;
	key->flags = target->flags | (key->tgid == key->tid ? STACK_FIRST_THREAD : 0);
	key->slice = config.slice_ns ? now / config.slice_ns : 0;
	key->kernel = key->user = key->python = 0;
	key->waker_tid = key->waker_tgid = 0;
}

INLINE void copy_comm(char *to, struct task_struct *task)
{
	u64 *from = (u64 *)__builtin_preserve_access_index(&task->comm);

	((u64 *)to)[0] = LOAD(&from[0]);
	((u64 *)to)[1] = LOAD(&from[1]);
}

INLINE void add_sample(struct stack_key *key, u64 time_ns, struct task_struct *waker)
{
	struct stack_value *value = bpf_map_lookup_elem(&samples, key);

	if (value) {
		__sync_fetch_and_add(&value->count, 1);
		__sync_fetch_and_add(&value->time_ns, time_ns);
		return;
	}
	struct stack_value fresh = {.count = 1, .time_ns = time_ns};
	if (waker)
		copy_comm(fresh.waker_comm, waker);
	if (bpf_map_update_elem(&samples, key, &fresh, MAP_UPDATE_NOEXIST))
		count(COUNTER_SAMPLES_FULL);
}

SEC("perf_event")
int take_tick(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct target *target = find_wanted(id >> 32);
	struct stack_key key;

	if (!target)
		return 0;
	begin_key(&key, target, id, bpf_ktime_get_ns(), STACK_ON_CPU);
	take_chains(ctx, &key, id);
	count(COUNTER_ON_CPU);
	add_sample(&key, 0, 0);
	return 0;
}

SEC("tp_btf/sched_switch")
int take_leave(u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1];
	u32 is_preempted = ctx[0] & 1, tid = prev->pid, taken = 0;
	struct stack_wait fresh = {};

	if (is_preempted || tid != (u32)prev->tgid || !prev->__state || prev->__state & TASK_DEAD_ANY)
		return 0;
	struct target *target = find_wanted(tid);
	if (!target || !config.has_off_cpu)
		return 0;
	u64 now = bpf_ktime_get_ns(), id = (u64)tid << 32 | tid;
	struct stack_wait *wait = bpf_map_lookup_elem(&waits, &tid);
	fresh.window = now / WINDOW_NS;
	if (wait && wait->window == fresh.window)
		taken = wait->taken;
	begin_key(&fresh.key, target, id, now, STACK_OFF_CPU);
	if (taken < config.waits_window) {
		take_chains(ctx, &fresh.key, id);
		taken++;
	} else {
		fresh.key.flags |= STACK_NOT_TAKEN;
		count(COUNTER_WAITS_NOT_TAKEN);
	}
	fresh.taken = taken;
	fresh.since_ns = now;
	bpf_map_update_elem(&waits, &tid, &fresh, MAP_UPDATE_ANY);
	return 0;
}

SEC("tp_btf/sched_waking")
int take_return(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tid = task->pid;
	struct stack_wait *wait;

	if (tid != (u32)task->tgid || !find_target(tid))
		return 0;
	wait = bpf_map_lookup_elem(&waits, &tid);
	if (!wait || !wait->since_ns)
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct stack_key key = wait->key;
	u64 time_ns = now > wait->since_ns ? now - wait->since_ns : 0;
	struct task_struct *waker = bpf_get_current_task_btf();
	u32 waker_tgid = waker->tgid;

	wait->since_ns = 0;
	if (!find_wanted(tid))
		return 0; /* left out since it began to wait */
	count(COUNTER_OFF_CPU);
	if (!find_target(waker_tgid)) {
		add_sample(&key, time_ns, 0);
		return 0;
	}
	key.waker_tid = waker->pid;
	key.waker_tgid = waker_tgid;
	add_sample(&key, time_ns, waker);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int take_fork(u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	u32 from = parent->tgid, to = child->tgid;

	if (from == to)
		return 0;
	u32 *space = bpf_map_lookup_elem(&spaces, &from);
	if (space)
		bpf_map_update_elem(&spaces, &to, space, MAP_UPDATE_ANY);
	struct interpreter *python = bpf_map_lookup_elem(&interpreters, &from);
	if (python)
		bpf_map_update_elem(&interpreters, &to, python, MAP_UPDATE_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int take_exec(u64 *ctx)
{
	u32 tgid = ((struct task_struct *)ctx[0])->tgid;

	bpf_map_delete_elem(&interpreters, &tgid);
	bpf_map_delete_elem(&spaces, &tgid);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int take_end(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	u32 tid = task->pid;

	if (tid == (u32)task->tgid) {
		bpf_map_delete_elem(&interpreters, &tid);
		bpf_map_delete_elem(&spaces, &tid);
	}
	return 0;
}
