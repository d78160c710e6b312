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

/* Process -> its splits that go on behind the call, until an operation is called in them. User space removes them as it
 * does communicators. When full: COMMUNICATORS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct unfinished);
} unfinished SEC(".maps");

/* Return the communicator at an address that has none, if a split has ended there. */
INLINE struct communicator *finish_split(u32 tgid, u64 address)
{
	struct unfinished *splits = address ? bpf_map_lookup_elem(&unfinished, &tgid) : 0;

	if (!splits)
		return 0;
	for (u32 i = 0; i < MAX_UNFINISHED; i++) {
		u64 made = 0, at = splits->at[i];
		struct communicator new = {.number = splits->number[i]};
		struct communicator_key key = {.tgid = tgid, .address = address};

		if (!at || !new.number || bpf_probe_read_user(&made, sizeof(made), (void *)at) || made != address)
			continue;
		splits->at[i] = 0;
		splits->number[i] = 0;
		bpf_map_update_elem(&communicators, &key, &new, MAP_UPDATE_NOEXIST);
		return bpf_map_lookup_elem(&communicators, &key);
	}
	return 0;
}

#endif
