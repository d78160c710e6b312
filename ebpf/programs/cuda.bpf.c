// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How often ranks call CUDA's libraries and for how long each call keeps the thread: launches, copies, waits,
 * allocations, products of matrices, NCCL's operations.
 *
 * Counts calls of watched processes that have returned, by kind, layer (runtime, driver, library), detail and
 * communicator, with their time from the function's first instruction to its return, their sizes, and how many failed.
 * What a call calls within its own layer is a part of it: it is counted once, as the outer one. What it calls in
 * another layer is counted there, so that times of layers overlap. A call that has not returned is in `running`.
 * Operations of a communicator that nccl.bpf.c has numbered are counted in it when they begin: that is their sequence.
 *
 * Does not count: functions that user space does not attach, calls that had begun before, calls that are left by an
 * exception or longjmp (the next call of the thread takes their place), and what a library calls inside itself without
 * its own exported functions, as a copy of the runtime that is linked into it.
 *
 * Hooks: uprobe and uretprobe, attached by user space, one pair a function and library file; since 6.6 one pair of links
 * holds all of a file. Needs BTF, CAP_BPF + CAP_PERFMON, before 6.6 CAP_SYS_ADMIN. Oldest kernel: 5.15 (cookies).
 *
 * Cost: `make bench-cuda`; most of it is the kernel's own way into the probe, which processes that are not watched pay
 * as well when they call a function of the same file.
 */
#include "cuda.h"
#include "communicators.bpf.h"
#include "counters.bpf.h"
#include "registers.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Thread and layer -> the call that it is in. When full, a call is not seen: CUDA_CALLS_FULL. User space removes those
 * of threads that have ended. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct running_key);
	__type(value, struct running_call);
} running SEC(".maps");

/* Rank, kind, layer, detail, communicator -> sums. User space removes ranks that have ended. When full:
 * CUDA_TOTALS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct call_key);
	__type(value, struct call_total);
} totals SEC(".maps");

/* Operations of numbered communicators, one by one; 64 bytes an operation. When full: CUDA_OPERATIONS_FULL. */
struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} operations SEC(".maps");

/* Whether they are told so; user space says it, by level. */
volatile u32 tells_operations;

SEC("uprobe")
int on_call(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	struct target *target = find_target(id >> 32);

	if (!target)
		return 0;
	u64 cookie = bpf_get_attach_cookie(ctx);
	u32 size_argument = COOKIE_SIZE_ARGUMENT(cookie), detail_argument = COOKIE_DETAIL_ARGUMENT(cookie);
	u32 communicator_argument = COOKIE_COMMUNICATOR_ARGUMENT(cookie);
	struct call_registers registers = {};
	read_registers(ctx, &registers, communicator_argument == MAX_ARGUMENT);
	struct running_key key = {.tid = (u32)id, .layer = COOKIE_LAYER(cookie)};
	struct running_call *outer = bpf_map_lookup_elem(&running, &key);
	/* Stacks grow down: a call from inside lies lower. One that does not lie lower was left without a return. */
	if (outer && registers.stack < outer->stack)
		return 0;

	u64 address = registers.arguments[communicator_argument & MAX_ARGUMENT];
	struct communicator *communicator = find_communicator(id >> 32, address);

	if (!communicator)
		communicator = finish_split(id >> 32, address);
	struct running_call started = {
		.cookie = cookie,
		.stack = registers.stack,
		.size = registers.arguments[size_argument & MAX_ARGUMENT],
		.key = {.slot = target->slot,
			.kind = COOKIE_KIND(cookie),
			.layer = COOKIE_LAYER(cookie),
			.detail = COOKIE_DETAIL(cookie),
			.communicator = communicator ? IS_NUMBERED | communicator->number : address},
		.tgid = (u32)(id >> 32),
		.address = address,
	};
	if (communicator) {
		u64 *called = COOKIE_IS_MESSAGE(cookie) ? &communicator->messages : &communicator->collectives;

		started.sequence = __sync_fetch_and_add(called, 1) + 1;
	}
	if (detail_argument)
		started.key.detail = (u8)registers.arguments[detail_argument & MAX_ARGUMENT];
	started.start_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&running, &key, &started, MAP_UPDATE_ANY))
		count(CUDA_CALLS_FULL);
	return 0;
}

INLINE void add(struct running_call *ended, u64 time_ns, u32 has_failed)
{
	struct call_total *total = bpf_map_lookup_elem(&totals, &ended->key);

	if (!total) {
		struct call_total zero = {};

		bpf_map_update_elem(&totals, &ended->key, &zero, MAP_UPDATE_NOEXIST);
		total = bpf_map_lookup_elem(&totals, &ended->key);
	}
	if (!total) {
		count(CUDA_TOTALS_FULL);
		return;
	}
	__sync_fetch_and_add(&total->count, 1);
	__sync_fetch_and_add(&total->time_ns, time_ns);
	__sync_fetch_and_add(&total->size, ended->size);
	if (has_failed)
		__sync_fetch_and_add(&total->failed, 1);
}

INLINE void tell(struct running_call *ended, u64 now)
{
	struct nccl_operation told = {
		.start_ns = ended->start_ns,
		.end_ns = now,
		.sequence = ended->sequence,
		.size = ended->size,
		.key = ended->key,
		.is_message = COOKIE_IS_MESSAGE(ended->cookie),
	};

	if (bpf_ringbuf_output(&operations, &told, sizeof(told), RINGBUF_NO_WAKEUP))
		count(CUDA_OPERATIONS_FULL);
}

SEC("uretprobe")
int on_return(void *ctx)
{
	u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();

	if (!find_target(id >> 32))
		return 0;
	u64 cookie = bpf_get_attach_cookie(ctx);
	struct running_key key = {.tid = (u32)id, .layer = COOKIE_LAYER(cookie)};
	struct running_call *found = bpf_map_lookup_elem(&running, &key);
	if (!found || found->cookie != cookie)
		return 0;
	struct call_registers registers = {};
	read_registers(ctx, &registers, 0);
	/* The return of a function that the same function called lies lower too. */
	if (registers.stack < found->stack + registers.is_popped)
		return 0;

	struct running_call ended = *found;
	bpf_map_delete_elem(&running, &key);
	u32 result = (u32)registers.result;
	u32 has_failed = result && !(ended.key.communicator && result == IN_PROGRESS);
	add(&ended, now - ended.start_ns, has_failed);
	if (ended.sequence && !has_failed && tells_operations)
		tell(&ended, now);
	/* Other members may not have failed: from here on they count otherwise. */
	struct communicator *communicator = has_failed ? find_communicator(id >> 32, ended.address) : 0;
	if (communicator && ended.key.communicator == (IS_NUMBERED | communicator->number))
		forget_communicator(id >> 32, ended.address);
	return 0;
}
