/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the stack program shares with user space. rootwalk.ebpf.stacks.records mirrors this file; static
 * asserts here and size tests there hold the two together. Times in ns of CLOCK_MONOTONIC. */
#ifndef ROOTWALK_STACKS_H
#define ROOTWALK_STACKS_H

#include "rootwalk_bpf.h"

/* Frames of one chain, innermost first; what lies deeper is cut off, and CHAIN_CUT says so. */
#define CHAIN_FRAMES 128
#define CHAIN_CUT 1
#define COMM_BYTES 16

enum stack_kind { STACK_ON_CPU = 0, STACK_OFF_CPU = 1 };

/* Flags of a thread, beside TARGET_* of its process. */
#define STACK_FIRST_THREAD 2
/* No chain was taken of a wait, because its thread waits too often. */
#define STACK_NOT_TAKEN 4

enum stack_counter {
	COUNTER_SAMPLES_FULL = 0,    /* samples that found no room in the map */
	COUNTER_THREAD_UNKNOWN = 1,  /* of a known interpreter, threads that it does not know: they run no Python */
	COUNTER_PYTHON_UNREAD = 2,   /* Python stacks that could not be read to their end */
	COUNTER_WAITS_NOT_TAKEN = 3, /* waits without a stack */
	COUNTER_ON_CPU = 4,	     /* samples on the CPU that were taken */
	COUNTER_OFF_CPU = 5,	     /* waits that ended */
	COUNTER_NATIVE_CUT = 6,	     /* user stacks that were not walked to their end */
	COUNTER_COUNT = 7,
};

/* Read-only configuration, set before loading. */
struct stack_config {
	u64 slice_ns;	  /* samples of one stack in one slice of time are one; 0 for no slices */
	u32 has_off_cpu;  /* follow waits too */
	u32 waits_window; /* how many waits of a thread in 100 ms get a stack */
};

/* Where a CPython keeps what is walked; offsets in bytes from the beginning of each structure. */
struct interpreter {
	u64 runtime; /* address of _PyRuntime */
	u32 interpreters_head;
	u32 threads_head;
	u32 thread_next;
	u32 thread_native_id;
	u32 thread_frame;
	u32 frame_in_cframe; /* NO_CFRAME where the thread points to its frame */
	u32 frame_code;
	u32 frame_previous;
	u32 frame_owner;
	u32 pad;
};

#define NO_CFRAME 0xffffffff

/* What tells samples apart. Chains are named by their hash, 0 for none. */
struct stack_key {
	u32 tgid;
	u32 tid;
	u32 slot;
	u16 kind;  /* stack_kind */
	u16 flags; /* TARGET_*, STACK_* */
	u64 slice; /* time of the sample, or of the wait's begin, over slice_ns */
	u64 kernel;
	u64 user;
	u64 python;
	u32 waker_tid; /* of waits that ended: the thread of a watched process that ran where the wait ended, else 0 */
	u32 waker_tgid;
};

struct stack_value {
	u64 count;
	u64 time_ns; /* of waits: how long until the thread was woken */
	char waker_comm[COMM_BYTES];
};

struct chain {
	u32 count;
	u32 flags; /* CHAIN_CUT */
	u64 at[CHAIN_FRAMES];
};

/* How a frame's caller is found; of WINDOW_BYTES of addresses. Offsets in words of 8 bytes from the CFA, the address
 * that the stack pointer has in the caller. */
#define WINDOW_BITS 6
#define WINDOW_BYTES (1 << WINDOW_BITS)
#define RULES 16
#define NOTE_STACK_BYTES 8192

enum unwind_cfa {
	CFA_UNKNOWN = 0, /* no table tells, or it needs what is not followed */
	CFA_SP = 1,	 /* stack pointer + cfa_words */
	CFA_FP = 2,	 /* frame pointer + cfa_words */
	CFA_PLT = 3,	 /* as CFA_SP, and a word more from the eleventh of 16 bytes on: x86-64's linkage table */
	CFA_END = 4,	 /* there is no caller */
	CFA_AT_FP = 5,	 /* kept at frame pointer + cfa_words: what GCC does where it aligns the stack */
};

/* Beside the CFA's kind: fp_words are from the frame pointer, and not from the CFA. */
#define FP_AT_FP 16

struct unwind_rule {
	u8 begin; /* where in the window it begins; 255 where it is not used */
	u8 cfa;	  /* unwind_cfa, FP_AT_FP */
	s16 cfa_words;
	s16 fp_words; /* where the caller's frame pointer was kept; 0 without FP_AT_FP: it is unchanged */
	s16 pc_words; /* where the return address was kept; 0 where it is in the link register */
};

struct unwind_window {
	struct unwind_rule rules[RULES];
};

struct window_key {
	u32 space;
	u32 pad;
	u64 number; /* address over WINDOW_BYTES */
};

/* Where a walk came to a window that it has no rules of. */
struct unwind_note {
	u64 pc;
	u64 sp;
	u64 fp;
	u64 link;
	u32 tgid;
	u16 size;      /* bytes of the stack that could be read */
	u16 is_caller; /* pc is a return address: the call lies before it */
	u8 stack[NOTE_STACK_BYTES];
};

/* A thread that waits, or has waited. */
struct stack_wait {
	u64 since_ns; /* 0 while it does not wait */
	u64 window;   /* number of the 100 ms that `taken` counts in */
	u32 taken;
	u32 pad;
	struct stack_key key;
};

_Static_assert(sizeof(struct stack_config) == 16, "stack_config");
_Static_assert(sizeof(struct interpreter) == 48, "interpreter");
_Static_assert(sizeof(struct stack_key) == 56, "stack_key");
_Static_assert(sizeof(struct stack_value) == 32, "stack_value");
_Static_assert(sizeof(struct chain) == 8 + 8 * CHAIN_FRAMES, "chain");
_Static_assert(sizeof(struct stack_wait) == 80, "stack_wait");
_Static_assert(sizeof(struct unwind_window) == 8 * RULES, "unwind_window");
_Static_assert(sizeof(struct window_key) == 16, "window_key");
_Static_assert(sizeof(struct unwind_note) == 40 + NOTE_STACK_BYTES, "unwind_note");

#endif
