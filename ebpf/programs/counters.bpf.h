/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a program could not keep, by reason. To be included after the enum of the reasons, which ends with their number,
 * COUNTER_COUNT. */
#ifndef ROOTWALK_COUNTERS_BPF_H
#define ROOTWALK_COUNTERS_BPF_H

#include "rootwalk_bpf.h"

/* Reason -> count since load. */
struct {
	__uint(type, MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTER_COUNT);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

INLINE void count(u32 counter)
{
	u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		__sync_fetch_and_add(value, 1);
}

#endif
