// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* How long a rank's threads had to look for free memory themselves, instead of going on.
 *
 * Counts, for threads of watched processes, how often and for how long each of them was in direct reclaim (the machine
 * is short of memory), in reclaim of its memory control group (the group is at its limit), and in compaction (there is
 * memory, but not in one piece), from the kernel's begin to its end: with the time in which it slept there, for example
 * for a page to be written. One inside another is counted once, as the outer one. Of a rank's first thread, what it lost
 * in each spell_ns or so is told too, at the end of the reclaim that completes them; a shorter rest with the next one.
 *
 * Does not count: what kernel threads (kswapd, kcompactd) do for everybody, what a major fault reads, the pause that a
 * group above its high mark gets, and a reclaim that had begun when the program was loaded.
 *
 * Hooks: tp_btf mm_vmscan_direct_reclaim_begin, _end, mm_vmscan_memcg_reclaim_begin, _end, mm_compaction_begin, _end.
 * Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.8 (ring buffer); the hooks are older.
 *
 * Cost: nothing where memory is free; else one map lookup a reclaim of any task, and seven map operations (0.8 us) one
 * of a watched thread, which takes the kernel 5 us at least and 250 us where it swaps. At most 200 events a second and
 * rank. To read it takes 8 us a rank, every 2 s.
 */
#include "memory.h"
#include "counters.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile u64 spell_ns = 10000000;

struct running_reclaim {
	u64 start_ns;
	u32 slot;
	u8 kind;
	u8 thread;
	u16 pad;
};

/* Thread id -> the reclaim that it is in. When full, a reclaim is not seen: MEMORY_THREADS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct running_reclaim);
} running SEC(".maps");

/* Rank, kind and thread -> number and time. User space removes ranks that have ended. When full: MEMORY_TOTALS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct reclaim_key);
	__type(value, struct reclaim_total);
} totals SEC(".maps");

/* Rank -> what its first thread lost and nobody was told yet. User space removes ranks that have ended. When full, each
 * reclaim is told on its own. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct reclaim_spell);
} untold SEC(".maps");

/* struct reclaim_spell for user space, which polls. When full: MEMORY_RING_FULL. */
struct {
	__uint(type, MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 * 1024);
} spells SEC(".maps");

INLINE int begin(u8 kind)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = id, tgid = id >> 32;
	struct target *target = find_target(tgid);

	if (!target)
		return 0;
	struct running_reclaim started = {.slot = target->slot, .kind = kind, .thread = THREAD_OTHER};
	if (target->flags & TARGET_INHERITED)
		started.thread = THREAD_CHILD;
	else if (tid == tgid)
		started.thread = THREAD_MAIN;
	started.start_ns = bpf_ktime_get_ns();
	/* Refused when the thread is in one already: that one goes on. */
	if (bpf_map_update_elem(&running, &tid, &started, MAP_UPDATE_NOEXIST) == ERROR_FULL)
		count(MEMORY_THREADS_FULL);
	return 0;
}

INLINE void add(struct running_reclaim *ended, u64 time_ns)
{
	struct reclaim_key key = {.slot = ended->slot, .kind = ended->kind, .thread = ended->thread};
	struct reclaim_total *total = bpf_map_lookup_elem(&totals, &key);

	if (!total) {
		struct reclaim_total zero = {};

		bpf_map_update_elem(&totals, &key, &zero, MAP_UPDATE_NOEXIST);
		total = bpf_map_lookup_elem(&totals, &key);
	}
	if (!total) {
		count(MEMORY_TOTALS_FULL);
		return;
	}
	__sync_fetch_and_add(&total->count, 1);
	__sync_fetch_and_add(&total->time_ns, time_ns);
}

INLINE void tell(struct reclaim_spell *spell)
{
	if (bpf_ringbuf_output(&spells, spell, sizeof(*spell), RINGBUF_NO_WAKEUP))
		count(MEMORY_RING_FULL);
}

/* Only the rank's first thread comes here. */
INLINE void add_spell(u32 slot, u64 start_ns, u64 end_ns)
{
	struct reclaim_spell spell = {
		.start_ns = start_ns, .end_ns = end_ns, .lost_ns = end_ns - start_ns, .slot = slot};
	struct reclaim_spell *open = bpf_map_lookup_elem(&untold, &slot);

	if (open && open->lost_ns && start_ns - open->start_ns >= spell_ns) {
		tell(open);
		open->lost_ns = 0;
	}
	if (open && open->lost_ns) {
		spell.start_ns = open->start_ns;
		spell.lost_ns += open->lost_ns;
	}
	u32 is_whole = end_ns - spell.start_ns >= spell_ns;
	if (is_whole) {
		tell(&spell);
		spell.lost_ns = 0;
	}
	if (open)
		*open = spell;
	else if (!is_whole && bpf_map_update_elem(&untold, &slot, &spell, MAP_UPDATE_NOEXIST))
		tell(&spell);
}

INLINE int end(u8 kind)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct running_reclaim *found = bpf_map_lookup_elem(&running, &tid);

	if (!found || found->kind != kind)
		return 0;
	struct running_reclaim ended = *found;
	u64 now = bpf_ktime_get_ns();
	bpf_map_delete_elem(&running, &tid);
	add(&ended, now - ended.start_ns);
	if (ended.thread == THREAD_MAIN)
		add_spell(ended.slot, ended.start_ns, now);
	return 0;
}

/* Ends come first: they are attached first, and no begin is left without its end. */
SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int on_direct_end(u64 *ctx)
{
	return end(RECLAIM_DIRECT);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int on_memcg_end(u64 *ctx)
{
	return end(RECLAIM_MEMCG);
}

SEC("tp_btf/mm_compaction_end")
int on_compact_end(u64 *ctx)
{
	return end(RECLAIM_COMPACTION);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int on_direct(u64 *ctx)
{
	return begin(RECLAIM_DIRECT);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int on_memcg(u64 *ctx)
{
	return begin(RECLAIM_MEMCG);
}

SEC("tp_btf/mm_compaction_begin")
int on_compact(u64 *ctx)
{
	return begin(RECLAIM_COMPACTION);
}
