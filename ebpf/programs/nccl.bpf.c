// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Which communicator of NCCL lies where in a rank: what all of its members know it by, from its creation to its end.
 *
 * Numbers each communicator that a watched process makes: from its creation's return until it is destroyed or aborted,
 * it is in `communicators`, where cuda.bpf.c counts its operations. A split that goes on behind the call (in a group, or
 * without waiting) has its address later: it is in `unfinished` until an operation is called in it. `births` says what it is: NCCL's unique id, which
 * all members pass, or of which parent it is which split with which colour.
 *
 * Does not count: creations that had begun before the probes, that fail, or that pass nothing by which members know
 * each other (ncclCommInitAll, ncclCommShrink, ncclCommGrow). Such a communicator has no number, and takes away that of
 * one which lay at its address before.
 *
 * Hooks: uprobe and uretprobe, attached by user space, after those of the operations: what is numbered is counted from
 * its first operation on. Needs what cuda.bpf.c needs. Oldest kernel: 5.15 (cookies).
 *
 * Cost: some probes a communicator, which a job makes tens of.
 */
#include "communicators.bpf.h"
#define COUNTER_COUNT COUNTER_COUNT_COMMUNICATORS
#include "counters.bpf.h"
#include "registers.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Of one call of ncclCommInitAll; there are not more devices in a host. */
#define MAX_MADE_AT_ONCE 64

/* Thread -> the creation that it is in. When full: COMMUNICATORS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct creation);
} creations SEC(".maps");

/* Number -> birth. User space takes them out. When full: COMMUNICATORS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, u64);
	__type(value, struct birth);
} births SEC(".maps");

static const struct creation nothing;
u64 last_number;

INLINE void read_id(struct creation *to, u64 at)
{
	if (bpf_probe_read_user(to->birth.id, UNIQUE_ID_BYTES, (void *)at))
		to->is_unreadable = 1;
}

/* System V ABI: 128 bytes by value lie behind the return address. AAPCS64: the caller passes where its copy lies. */
INLINE void read_begin_by_id(struct creation *to, struct call_registers *registers)
{
	to->at = registers->arguments[1];
	to->birth.members = (u32)registers->arguments[2];
	to->birth.rank = (u32)registers->arguments[registers->is_popped ? 3 : 4];
	read_id(to, registers->is_popped ? registers->stack + sizeof(u64) : registers->arguments[3]);
}

INLINE void read_begin_by_ids(struct creation *to, struct call_registers *registers)
{
	to->at = registers->arguments[1];
	to->birth.members = (u32)registers->arguments[2];
	to->birth.rank = (u32)registers->arguments[3];
	read_id(to, registers->arguments[5]);
}

INLINE void read_begin_of_split(struct creation *to, struct call_registers *registers, u32 tgid)
{
	struct communicator *parent = find_communicator(tgid, registers->arguments[1]);

	if (!parent)
		parent = finish_split(tgid, registers->arguments[1]);
	to->at = registers->arguments[4];
	if (!parent)
		return;
	/* All members split it as often, those that will be in no child as well. */
	parent->splits++;
	to->parent_address = registers->arguments[1];
	to->birth.parent = parent->is_unsure ? 0 : parent->number;
	to->birth.split = parent->splits;
	to->birth.colour = (s32)registers->arguments[2];
}

SEC("uprobe")
int on_create(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), what = bpf_get_attach_cookie(ctx);
	struct target *target = find_target(id >> 32);

	if (!target)
		return 0;
	u32 tid = (u32)id;
	struct call_registers registers = {};
	read_registers(ctx, &registers, 0);
	if (what == ENDS) {
		/* At its begin: when it returns, another may lie there. */
		finish_split(id >> 32, registers.arguments[1]);
		forget_communicator(id >> 32, registers.arguments[1]);
		return 0;
	}
	struct creation *outer = bpf_map_lookup_elem(&creations, &tid);
	/* One function of these that calls another makes one communicator. */
	if (outer && registers.stack < outer->stack)
		return 0;
	bpf_map_update_elem(&creations, &tid, &nothing, MAP_UPDATE_ANY);
	struct creation *begun = bpf_map_lookup_elem(&creations, &tid);
	if (!begun) {
		count(COMMUNICATORS_FULL);
		return 0;
	}
	begun->what = what;
	begun->stack = registers.stack;
	begun->birth.tgid = (u32)(id >> 32);
	begun->birth.slot = target->slot;
	if (what == CREATES_BY_ID) {
		read_begin_by_id(begun, &registers);
	} else if (what == CREATES_BY_IDS) {
		read_begin_by_ids(begun, &registers);
	} else if (what == SPLITS) {
		read_begin_of_split(begun, &registers, id >> 32);
	} else {
		begun->at = registers.arguments[what == CREATES_ALL ? 1 : what == GROWS ? 5 : 4];
		begun->birth.members = what == CREATES_ALL ? (u32)registers.arguments[2] : 1;
	}
	return 0;
}

/* Whether all members know it by what was passed. */
INLINE u32 has_identity(struct creation *made)
{
	if (made->what == SPLITS)
		return made->birth.parent != 0;
	if (made->what != CREATES_BY_ID && made->what != CREATES_BY_IDS)
		return 0;
	/* As NCCL itself checks them. */
	return (s32)made->birth.members > 0 && (s32)made->birth.rank >= 0 && made->birth.rank < made->birth.members;
}

/* Where its address will be is not in use any more for what was split before. */
INLINE u32 remember_unfinished(struct creation *made, u64 number)
{
	static const struct unfinished none;
	u32 tgid = made->birth.tgid;

	bpf_map_update_elem(&unfinished, &tgid, &none, MAP_UPDATE_NOEXIST);
	struct unfinished *splits = bpf_map_lookup_elem(&unfinished, &tgid);
	if (!splits)
		return 0;
	for (u32 i = 0; i < MAX_UNFINISHED; i++)
		if (splits->at[i] == made->at) {
			splits->at[i] = 0;
			splits->number[i] = 0;
		}
	for (u32 i = 0; i < MAX_UNFINISHED; i++)
		if (!__sync_val_compare_and_swap(&splits->number[i], 0, number)) {
			splits->at[i] = made->at;
			return 1;
		}
	return 0;
}

INLINE void number(struct creation *made)
{
	u64 next = __sync_fetch_and_add(&last_number, 1) + 1;
	struct communicator_key key = {.tgid = made->birth.tgid, .address = made->birth.address};
	struct communicator new = {.number = next};

	if (bpf_map_update_elem(&births, &next, &made->birth, MAP_UPDATE_ANY)) {
		count(COMMUNICATORS_FULL);
		return;
	}
	u32 is_kept = made->birth.address ? !bpf_map_update_elem(&communicators, &key, &new, MAP_UPDATE_ANY)
					  : remember_unfinished(made, next);
	if (!is_kept) {
		count(COMMUNICATORS_FULL);
		bpf_map_delete_elem(&births, &next);
	}
}

/* A communicator without a number takes away that of one which lay at its address. */
INLINE void forget_all_made(struct creation *made)
{
	for (u32 i = 0; i < MAX_MADE_AT_ONCE; i++) {
		u64 address = 0;

		if (i >= made->birth.members)
			break;
		if (bpf_probe_read_user(&address, sizeof(address), (void *)(made->at + i * sizeof(address))))
			count(COMMUNICATORS_UNREADABLE);
		forget_communicator(made->birth.tgid, address);
	}
}

INLINE void end_creation(struct creation *made, u32 has_failed)
{
	if (made->what != SPLITS && made->what != CREATES_BY_ID && made->what != CREATES_BY_IDS) {
		forget_all_made(made);
		return;
	}
	if (has_failed) {
		struct communicator *parent = find_communicator(made->birth.tgid, made->parent_address);

		if (parent)
			parent->is_unsure = 1;
		return;
	}
	if (bpf_probe_read_user(&made->birth.address, sizeof(u64), (void *)made->at)) {
		count(COMMUNICATORS_UNREADABLE);
		return;
	}
	if (!made->birth.address && (made->what != SPLITS || made->birth.colour < 0))
		return; /* a split that this rank has no part in */
	forget_communicator(made->birth.tgid, made->birth.address);
	if (made->is_unreadable)
		count(COMMUNICATORS_UNREADABLE);
	else if (has_identity(made))
		number(made);
}

SEC("uretprobe")
int on_created(void *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id;

	if (!find_target(id >> 32))
		return 0;
	struct creation *found = bpf_map_lookup_elem(&creations, &tid);
	if (!found || found->what != bpf_get_attach_cookie(ctx))
		return 0;
	struct call_registers registers = {};
	read_registers(ctx, &registers, 0);
	if (registers.stack < found->stack + registers.is_popped)
		return 0;
	u32 result = (u32)registers.result;
	end_creation(found, result && result != IN_PROGRESS);
	bpf_map_delete_elem(&creations, &tid);
	return 0;
}
