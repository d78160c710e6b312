/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts that the program of CUDA calls shares with user space; rootwalk.ebpf.cuda.totals mirrors this file. Times are
 * ns of CLOCK_MONOTONIC. */
#ifndef ROOTWALK_CUDA_H
#define ROOTWALK_CUDA_H

#include "rootwalk_bpf.h"

/* What user space attaches to each function, and gets back at each of its calls: bit of the lowest, and how many.
 *
 *    0, 8  kind of call, which means something to user space only
 *    8, 8  layer: calls inside another call of their layer are a part of that one
 *   16, 8  detail where no argument tells it
 *   24, 4  number of the argument that is its size, from 1; 0 for none; up to 7
 *   28, 4  number of the argument that is its detail, from 1; 0 for none; up to 7
 *   32, 4  number of the argument that is its communicator, from 1; 0 for none; up to 7
 *   36, 1  it is a send or a receive, which are numbered apart
 */
#define COOKIE_KIND(cookie) ((u8)(cookie))
#define COOKIE_LAYER(cookie) ((u8)((cookie) >> 8))
#define COOKIE_DETAIL(cookie) ((u8)((cookie) >> 16))
#define COOKIE_SIZE_ARGUMENT(cookie) ((u32)((cookie) >> 24) & 15)
#define COOKIE_DETAIL_ARGUMENT(cookie) ((u32)((cookie) >> 28) & 15)
#define COOKIE_COMMUNICATOR_ARGUMENT(cookie) ((u32)((cookie) >> 32) & 15)
#define COOKIE_IS_MESSAGE(cookie) ((u32)((cookie) >> 36) & 1)

enum cuda_counter {
	CUDA_CALLS_FULL = 0,	/* calls of threads that found no room in the map of running calls */
	CUDA_TOTALS_FULL = 1,	/* calls that found no room in the map of totals */
	CUDA_OPERATIONS_FULL = 2,	/* NCCL's operations that found no room in the ring */
	COUNTER_COUNT = 3,
};

struct call_key {
	u32 slot;
	u8 kind;
	u8 layer;
	u8 detail;	  /* direction of a copy, type of what is moved */
	u8 pad;
	u64 communicator; /* its number and IS_NUMBERED; else its address in the process; 0 for none */
};

struct call_total {
	u64 count;   /* calls that have returned */
	u64 time_ns; /* in them */
	u64 size;    /* sum of their sizes: bytes, elements */
	u64 failed;  /* calls that returned an error */
};

struct running_key {
	u32 tid;
	u32 layer;
};

struct running_call {
	u64 start_ns;
	u64 cookie;
	u64 stack; /* the stack pointer at its begin */
	u64 size;
	struct call_key key;
	u64 address;  /* of its communicator; 0 for none */
	u64 sequence; /* its number in a communicator that has one; 0 for none */
	u32 tgid;
	u32 pad;
};

/* An operation of NCCL that has returned, told at level 2. */
struct nccl_operation {
	u64 start_ns;
	u64 end_ns;
	u64 sequence;
	u64 size; /* elements */
	struct call_key key;
	u32 is_message;
	u32 pad;
};

_Static_assert(sizeof(struct nccl_operation) == 56, "nccl_operation");
_Static_assert(sizeof(struct call_key) == 16, "call_key");
_Static_assert(sizeof(struct call_total) == 32, "call_total");
_Static_assert(sizeof(struct running_key) == 8, "running_key");
_Static_assert(sizeof(struct running_call) == 72, "running_call");

#endif
