/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which processes belong to a rank: one map that every program shares. The loader makes it once, with targets.bpf.c,
 * and hands it to the other objects. */
#ifndef ROOTWALK_TARGETS_BPF_H
#define ROOTWALK_TARGETS_BPF_H

#include "rootwalk_bpf.h"

/* Flags of a target process. */
#define TARGET_INHERITED 1 /* a child of a rank's process, such as a loader worker */

/* A watched process. */
struct target {
	u32 slot;  /* rank slot, 1 or more */
	u32 flags; /* TARGET_* */
};

/* Process id -> its rank. When full, a child is not followed; ranks themselves are written by user space. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct target);
} targets SEC(".maps");

INLINE struct target *find_target(u32 tgid)
{
	return tgid ? bpf_map_lookup_elem(&targets, &tgid) : 0;
}

#endif
