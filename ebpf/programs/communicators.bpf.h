/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NCCL's communicators that are there now: one map that the program of calls counts in and that of creations fills. The
 * loader makes it once, with cuda.bpf.c, and hands it to the other object. */
#ifndef ROOTWALK_COMMUNICATORS_BPF_H
#define ROOTWALK_COMMUNICATORS_BPF_H

#include "communicators.h"

/* Process and address -> the communicator there. User space removes those of processes that have ended, and all when it
 * takes the probes away, since calls are missed then. When full, a communicator has no number: COMMUNICATORS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct communicator_key);
	__type(value, struct communicator);
} communicators SEC(".maps");

INLINE struct communicator *find_communicator(u32 tgid, u64 address)
{
	struct communicator_key key = {.tgid = tgid, .address = address};

	return address ? bpf_map_lookup_elem(&communicators, &key) : 0;
}

INLINE void forget_communicator(u32 tgid, u64 address)
{
	struct communicator_key key = {.tgid = tgid, .address = address};

	bpf_map_delete_elem(&communicators, &key);
}

#endif
