/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layout that the lifecycle program shares with user space. rootwalk.ebpf.lifecycle mirrors this file; static
 * asserts here and size tests there hold the two together. */
#ifndef ROOTWALK_LIFECYCLE_H
#define ROOTWALK_LIFECYCLE_H

#include "rootwalk_bpf.h"

#define COMM_BYTES 16

enum lifecycle_kind { LIFECYCLE_SIGNAL = 0, LIFECYCLE_END = 1, LIFECYCLE_OOM = 2 };

enum lifecycle_counter {
	COUNTER_RING_FULL = 0,	    /* events that found no room in the ring */
	COUNTER_PROCESSES_FULL = 1, /* children whose end will not be told */
	COUNTER_COUNT = 2,
};

struct lifecycle_event {
	u64 time_ns; /* CLOCK_MONOTONIC */
	u32 kind;    /* lifecycle_kind */
	u32 pid;     /* the process that it happened to */
	u32 slot;
	u32 flags;  /* TARGET_* of that process */
	u32 number; /* signal; of an end task_struct.exit_code, as wait(2) tells it */
	/* Of a signal only. */
	u32 sender_pid; /* 0: the kernel itself */
	u32 sender_slot;
	u32 pad;
	char sender_name[COMM_BYTES];
};

_Static_assert(sizeof(struct lifecycle_event) == 56, "lifecycle_event");

#endif
