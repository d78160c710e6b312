/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Layouts of NCCL's communicators, which the programs of CUDA calls and of their creation share with user space;
 * rootwalk.ebpf.cuda.communicators mirrors this file. */
#ifndef ROOTWALK_COMMUNICATORS_H
#define ROOTWALK_COMMUNICATORS_H

#include "rootwalk_bpf.h"

#define UNIQUE_ID_BYTES 128

/* A communicator whose creation was seen has a number instead of an address; no address of a program has this bit. */
#define IS_NUMBERED (1ULL << 63)

/* A communicator whose operation goes on behind the call (ncclInProgress) has not failed. */
#define IN_PROGRESS 7

/* What user space attaches to each function, and gets back at each of its calls. */
enum lifetime {
	CREATES_BY_ID = 1,	/* (new *, members, id, rank, ...), the id by value */
	CREATES_BY_IDS = 2,	/* (new *, members, rank, ids, id *, ...) */
	SPLITS = 3,		/* (parent, colour, key, new *, ...) */
	CREATES_OTHERWISE = 4,	/* (parent, -, -, new *, ...): nothing equal on all members is passed */
	GROWS = 5,		/* (parent, -, -, -, new *, ...): the same */
	CREATES_ALL = 6,	/* (new [], members, ...): the same */
	ENDS = 7,		/* (communicator) */
};

enum communicator_counter {
	COMMUNICATORS_FULL = 0,		/* creations that found no room in a map: such communicators have no number */
	COMMUNICATORS_UNREADABLE = 1,	/* creations whose id or result could not be read: the same */
	COUNTER_COUNT_COMMUNICATORS = 2,
};

struct communicator_key {
	u32 tgid;
	u32 pad;
	u64 address;
};

/* One that is there now. */
struct communicator {
	u64 number;	 /* of its birth */
	u64 collectives; /* that were called, whether or not they have returned */
	u64 messages;	 /* sends and receives that were called, the same */
	u32 splits;	 /* times that it was split */
	u32 is_unsure;	 /* a split has failed: which one the next is, others may count otherwise */
};

/* What was learned when it was made. */
struct birth {
	u64 address; /* 0 for a split that goes on behind the call */
	u64 parent; /* number of the one that it was split from, else 0 */
	u32 tgid;
	u32 slot;
	u32 members; /* 0 where not known */
	u32 rank;    /* its own in the communicator */
	u32 split;   /* the how-manieth of its parent, from 1, else 0 */
	s32 colour;
	u8 id[UNIQUE_ID_BYTES]; /* of one that was not split */
};

/* Splits of a process that go on behind the call: NCCL writes their addresses to where the caller said, later. */
#define MAX_UNFINISHED 8
struct unfinished {
	u64 at[MAX_UNFINISHED];
	u64 number[MAX_UNFINISHED]; /* of their births; 0 where there is none */
};

/* A creation that has not returned. */
struct creation {
	u64 what;
	u64 stack;	    /* the stack pointer at its begin */
	u64 at;		    /* where the new one's address will be */
	u64 parent_address; /* of a split */
	u32 is_unreadable;  /* its id was not to be read */
	u32 pad;
	struct birth birth;
};

_Static_assert(sizeof(struct communicator_key) == 16, "communicator_key");
_Static_assert(sizeof(struct communicator) == 32, "communicator");
_Static_assert(sizeof(struct unfinished) == 128, "unfinished");
_Static_assert(sizeof(struct birth) == 168, "birth");
_Static_assert(sizeof(struct creation) == 208, "creation");

#endif
