/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* sched.bpf.c for kernels whose sched_switch has three arguments, without the state of the thread that leaves: before
 * 5.18, but for those to which a distribution has added it. Everything that is said there is true here, but that the
 * state is read from the thread, and that a table's elements count the steps of a walk: there is no bpf_loop.
 *
 * Hooks: as there. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.15 (bpf_task_pt_regs).
 */
#define BEFORE_5_18
#include "rootwalk_bpf.h"
#include "sched.h"

/* How many steps a walk may take; what is in it means nothing. */
struct {
	__uint(type, MAP_TYPE_ARRAY);
	__uint(max_entries, SLICES_PER_CPU);
	__type(key, u32);
	__type(value, u32);
} steps SEC(".maps");

#ifndef ROOTWALK_BCC /* which has loops of its own */
struct walk;
static long walk_slice(u32 index, struct walk *walk);

static long walk_step(void *map, u32 *index, u32 *value, struct walk *walk)
{
	return walk_slice(*index, walk);
}

#define bpf_loop(count, callback, context, flags) bpf_for_each_map_elem(&steps, walk_step, context, flags)
#endif

#include "sched.bpf.c"
