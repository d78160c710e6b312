/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the memory program shares with user space; rootwalk.ebpf.memory mirrors this file. Times are ns of
 * CLOCK_MONOTONIC. */
#ifndef ROOTWALK_MEMORY_H
#define ROOTWALK_MEMORY_H

#include "rootwalk_bpf.h"

enum reclaim_kind { RECLAIM_DIRECT = 0, RECLAIM_MEMCG = 1, RECLAIM_COMPACTION = 2 };

/* Which of a rank's threads: its first one, another one of its process, any of a child process. */
enum thread_kind { THREAD_OTHER = 0, THREAD_MAIN = 1, THREAD_CHILD = 2 };

enum memory_counter {
	MEMORY_RING_FULL = 0,	/* spells that found no room in the ring; their time is in the totals */
	MEMORY_THREADS_FULL = 1, /* reclaims of threads that found no room in the thread map */
	MEMORY_TOTALS_FULL = 2, /* reclaims of ranks that found no room in the map of totals */
	COUNTER_COUNT = 3,
};

struct reclaim_key {
	u32 slot;
	u8 kind;   /* reclaim_kind */
	u8 thread; /* thread_kind */
	u16 pad;
};

struct reclaim_total {
	u64 count;
	u64 time_ns;
};

/* Reclaims of a rank's first thread, one after another. */
struct reclaim_spell {
	u64 start_ns; /* of the first */
	u64 end_ns;   /* of the last */
	u64 lost_ns;  /* in all of them */
	u32 slot;
	u32 pad;
};

_Static_assert(sizeof(struct reclaim_key) == 8, "reclaim_key");
_Static_assert(sizeof(struct reclaim_total) == 16, "reclaim_total");
_Static_assert(sizeof(struct reclaim_spell) == 32, "reclaim_spell");

#endif
