/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the scheduler program shares with user space. rootwalk.ebpf.events mirrors this file; static
 * asserts here and size tests there hold the two together. Fixed widths, padding written out, all times in ns of CLOCK_MONOTONIC. */
#ifndef ROOTWALK_SCHED_H
#define ROOTWALK_SCHED_H

#include "rootwalk_bpf.h"

#define COMM_BYTES 16
#define TOP_SIZE 8
/* When they reach back less than SHORT_MEMORY_NS (a switch every 390 us or faster), stays of one process that begin
 * within MERGE_NS are kept as one: two processes that wake each other every microsecond then use 2 of them a ms. */
#define SLICES_PER_CPU 128
#define SHORT_MEMORY_NS 50000000
#define MERGE_NS 1000000
#define MERGE_DEPTH 4

enum thread_state_kind {
	STATE_RUNNING = 0,
	STATE_RUNNABLE = 1,
	STATE_BLOCKED = 2,
	STATE_BLOCKED_IO = 3,
	STATE_STOPPED = 4,
	STATE_EXITED = 5, /* only as the kind of an exit event */
	STATE_SUMMED = 6, /* the same of a thread that lives: its totals up to now */
};

enum runner_kind { RUNNER_FOREIGN = 0, RUNNER_OWN = 1, RUNNER_KERNEL = 2, RUNNER_IDLE = 3 };

/* Flags of a thread in an event, beside those of its process (targets.bpf.h). */
#define THREAD_LEADER 2 /* the process's first thread */
#define THREAD_WAIT 4	/* the event carries a `wait` in place of runners */

/* What a system call takes, by its number; the rest of them nothing that tells what it waits for. */
#define CALL_KINDS 512
#define CALL_FILE 1  /* a file descriptor first */
#define CALL_POLL 2  /* an array of pollfd, and their number */
#define CALL_FUTEX 3 /* the address of a lock */

enum counter {
	COUNTER_RING_FULL = 0,	  /* events that found no room in the ring */
	COUNTER_LOST_SLICES = 1,  /* waits longer than the memory of who ran */
	COUNTER_THREADS_FULL = 2, /* threads that found no room in the thread map */
	COUNTER_MADE_UP = 3,	  /* switches that the kernel did not tell: no loss, see make_up() */
	COUNTER_COUNT = 4,
};

/* How much is told; user space may change it at any time. */
struct sched_detail {
	u64 min_runnable_ns; /* shorter waits are summed and not reported one by one */
	u64 min_blocked_ns;
	u64 first_sum_ns;    /* how often the totals of ranks' first threads are told; 0 for never */
	u64 child_sum_ns;    /* the same for the threads of their children */
	u64 other_sum_ns;    /* the same for their other threads */
};

/* Read-only configuration, set before loading. */
struct sched_config {
	u8 call_kinds[CALL_KINDS]; /* by system call number of this architecture: CALL_* */
};

/* What a blocked thread waits for, and who ended it. Zero where a part is not known. */
struct wait {
	u64 object;	  /* address of a futex */
	s32 call;	  /* number of the system call; below 0: none, a page fault or a stop */
	u32 device;	  /* of the file's file system, as the kernel writes it: major << 20 | minor */
	u32 magic;	  /* type of the file system, as statfs(2) */
	u32 address;	  /* remote IPv4 address of a socket, network order */
	u16 mode;	  /* type and permissions of the file, as stat(2) */
	u16 family;	  /* of a socket, as socket(2) */
	u16 port;	  /* remote port of a socket */
	u16 poll_events;  /* what it polled a single file for, as poll(2) */
	u32 waker_tid;	  /* who woke it; an interrupt is told as the thread that it interrupted */
	u32 waker_tgid;
	char waker_comm[COMM_BYTES];
};

/* The exact partition of one thread's time since it was first seen. */
struct thread_totals {
	u64 running_ns;
	u64 runnable_ns;
	u64 blocked_ns;
	u64 blocked_io_ns;
	u64 stopped_ns;
	u64 runner_ns[4]; /* of runnable_ns, by runner_kind; what the slices no longer tell is missing */
	u64 switches;
};

struct thread_record {
	u64 since_ns; /* when the present state began */
	u32 state;    /* thread_state_kind */
	u32 cpu;      /* where it runs or waits */
	u32 tgid;
	u32 slot;
	u32 flags;
	u32 has_untold; /* the totals hold a wait that was not told */
	char comm[COMM_BYTES];
	struct thread_totals totals;
	u64 told_ns;	  /* when the totals or an interval were last told */
	struct wait wait; /* while it is blocked */
};

/* One process that ran in a thread's place; one thread where it is of the same rank. */
struct runner {
	/* Process << 32 | runner_kind << 30 | the thread, where it is of the same rank, else 0. One number, for each test
	 * more in the loops over runners doubles the ways that the verifier has to follow. */
	u64 name;
	u64 ran_ns;
	char comm[COMM_BYTES];
};

/* One finished interval. Only the first `runner_count` runners are sent, or a wait. */
struct sched_event {
	u64 start_ns;
	u64 end_ns;
	u32 tid;
	u32 tgid;
	u32 slot;
	u32 cpu;
	u8 state; /* thread_state_kind */
	u8 flags; /* TARGET_*, THREAD_* */
	u16 runner_count;
	u32 pad;
	char comm[COMM_BYTES];
	u64 runner_ns[4]; /* by runner_kind */
	union {
		struct runner runners[TOP_SIZE];
		struct wait wait;
	};
};

/* A thread's totals: state STATE_EXITED, final ones, or STATE_SUMMED. Same first 56 bytes as sched_event. */
struct exit_event {
	u64 start_ns;
	u64 end_ns;
	u32 tid;
	u32 tgid;
	u32 slot;
	u32 cpu;
	u8 state;
	u8 flags;
	u16 runner_count;
	u32 pad;
	char comm[COMM_BYTES];
	struct thread_totals totals;
};

/* One stay of a task on a CPU, or several merged ones of one process (of one thread where it is watched). */
struct slice {
	u64 start_ns;  /* begin of the first stay; 0 for a place that was never used */
	u64 end_ns;    /* end of the last one that has ended */
	u64 ran_ns;    /* all of them that have ended; less than end - start when merged */
	u32 tgid;
	u32 tid;       /* of the first stay */
	u32 slot;      /* rank slot, 0 for everything that is not watched */
	u32 is_kernel; /* a kernel thread */
	char comm[COMM_BYTES];
};

struct cpu_slices {
	u64 head;	   /* index of the newest slice, counted without end */
	u64 open;	   /* index of the slice that is running */
	u64 open_since_ns; /* since when */
	u64 open_tid;	   /* of which thread */
	struct slice slices[SLICES_PER_CPU];
};

_Static_assert(sizeof(struct thread_totals) == 80, "thread_totals");
_Static_assert(sizeof(struct sched_detail) == 40, "sched_detail");
_Static_assert(sizeof(struct thread_record) == 192, "thread_record");
_Static_assert(sizeof(struct wait) == 56, "wait");
_Static_assert(sizeof(struct runner) == 32, "runner");
_Static_assert(sizeof(struct sched_event) == 88 + TOP_SIZE * 32, "sched_event");
_Static_assert(sizeof(struct exit_event) == 56 + 80, "exit_event");
_Static_assert(sizeof(struct slice) == 56, "slice");

#endif
