/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the interrupt program shares with user space. rootwalk.ebpf.interrupts mirrors this file; static
 * asserts here and size tests there hold the two together. Fixed widths, all times in ns of CLOCK_MONOTONIC. */
#ifndef ROOTWALK_INTERRUPTS_H
#define ROOTWALK_INTERRUPTS_H

#include "rootwalk_bpf.h"

enum interrupt_kind {
	INTERRUPT_HARD = 0,  /* number: of the interrupt, as in /proc/interrupts */
	INTERRUPT_SOFT = 1,  /* number: of the vector, as in include/linux/interrupt.h */
	INTERRUPT_LOCAL = 2, /* number: enum local_vector */
};

/* What a CPU or its neighbours interrupt by themselves; x86 only. */
enum local_vector { LOCAL_TIMER = 0, LOCAL_RESCHEDULE = 1, LOCAL_CALL = 2, LOCAL_CALL_SINGLE = 3, LOCAL_WORK = 4 };

enum interrupt_role { ROLE_MAIN = 0, ROLE_OTHER = 1, ROLE_CHILD = 2 };

enum interrupt_counter {
	COUNTER_TOTALS_FULL = 0,  /* interrupts whose time found no room in the sums */
	COUNTER_WINDOWS_FULL = 1, /* interrupts of a first thread of which no spell can be told */
	COUNTER_RING_FULL = 2,	  /* spells that found no room in the ring */
	COUNTER_COUNT = 3,
};

struct total_key {
	u32 slot;
	u16 kind; /* interrupt_kind */
	u16 role; /* interrupt_role */
	u32 number;
};

struct total {
	u64 stolen_ns;
	u64 count;
};

/* What was stolen from a rank's first thread since `start_ns`; the next one that is sent. */
struct window {
	u64 start_ns;
	u64 end_ns; /* end of the last interrupt in it */
	u64 stolen_ns;
};

struct spell_event {
	u64 start_ns;
	u64 end_ns;
	u64 stolen_ns;
	u32 slot;
	u32 pad;
};

_Static_assert(sizeof(struct total_key) == 12, "total_key");
_Static_assert(sizeof(struct total) == 16, "total");
_Static_assert(sizeof(struct window) == 24, "window");
_Static_assert(sizeof(struct spell_event) == 32, "spell_event");

#endif
