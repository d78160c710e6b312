/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the block program shares with user space; rootwalk.ebpf.block_io mirrors this file. */
#ifndef ROOTWALK_BLOCK_IO_H
#define ROOTWALK_BLOCK_IO_H

#include "rootwalk_bpf.h"

#define DISK_NAME_BYTES 32
/* How long a request took: under 100 us, 1 ms, 10 ms, 100 ms, 1 s, and all others. */
#define DURATION_CLASSES 6
#define SHORTEST_CLASS_NS 100000

enum block_counter {
	BLOCK_UNMATCHED = 0,   /* requests whose beginning is not known: it was before the load, or was pushed out */
	BLOCK_TOTALS_FULL = 1, /* requests that found no room in the map of totals */
	COUNTER_COUNT = 2,
};

struct block_key {
	u32 device; /* as the kernel writes it: major << 20 | minor */
	u32 slot;   /* rank slot; 0 for everybody else */
	u32 is_write;
};

struct block_totals {
	u64 bytes;
	u64 queue_ns;
	u64 device_ns;
	u64 operations[DURATION_CLASSES];
	char name[DISK_NAME_BYTES];
};

_Static_assert(sizeof(struct block_key) == 12, "block_key");
_Static_assert(sizeof(struct block_totals) == 104, "block_totals");

#endif
