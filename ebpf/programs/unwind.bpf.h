/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* User stacks of code with and without frame pointers.
 *
 * What a frame's caller needs, its return address, stack pointer and frame pointer, is told by rules that user space
 * takes from the files' unwind tables (.eh_frame) and writes here by windows of WINDOW_BYTES of a process's addresses.
 * It does so on demand: a walk that comes to a window without rules leaves a note with the top of the stack, from which
 * user space learns this window and those of the callers. Until then, and where no table tells, frames are walked by
 * frame pointers.
 *
 * Bounds: WINDOWS windows, of which those that are not met make room; RULES rules a window; CHAIN_FRAMES frames. Of the
 * registers only stack and frame pointer are followed: a frame whose caller needs others ends the chain, or goes on by
 * the frame pointer.
 */
#ifndef ROOTWALK_UNWIND_BPF_H
#define ROOTWALK_UNWIND_BPF_H

#include "rootwalk_types.bpf.h"
#include "stacks.h"

#define WINDOWS 16384
#define NOTES 64
/* Between frames by frame pointers; more is no frame. */
#define MAX_FRAME_BYTES (1 << 20)
/* Above it lie an arm64 return address's signature and the memory tag. */
#define ADDRESS_MASK 0x0000ffffffffffffULL

/* Of the two, the loader knows the one that the running kernel has; the other's reads are never reached. */
struct pt_regs___arm64 {
	u64 regs[31];
	u64 sp;
	u64 pc;
} RELOCATED;

struct pt_regs___x86 {
	unsigned long bp;
	unsigned long ip;
	unsigned long sp;
} RELOCATED;

/* Process -> number of its address space, which its forked children share. User space writes it. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} spaces SEC(".maps");

/* User space writes it; 3 MB. */
struct {
	__uint(type, MAP_TYPE_LRU_HASH);
	__uint(max_entries, WINDOWS);
	__type(key, struct window_key);
	__type(value, struct unwind_window);
} windows SEC(".maps");

/* A window that was needed -> where; user space takes them out. 530 kB. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, NOTES);
	__type(key, struct window_key);
	__type(value, struct unwind_note);
} notes SEC(".maps");

struct {
	__uint(type, MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct unwind_note);
} note_scratch SEC(".maps");

/* Where a walk is. `link` is arm64's register for the return address, known of the innermost frame only. */
struct unwind_point {
	u64 pc;
	u64 sp;
	u64 fp;
	u64 link;
};

static __attribute__((noinline)) int leave_note(struct window_key *key, struct unwind_point *at, u64 tgid_and_kind)
{
	u32 zero = 0;
	struct unwind_note *note;

	if (!key || !at || bpf_map_lookup_elem(&notes, key))
		return 0;
	note = bpf_map_lookup_elem(&note_scratch, &zero);
	if (!note)
		return 0;
	note->pc = at->pc;
	note->sp = at->sp;
	note->fp = at->fp;
	note->link = at->link;
	note->tgid = tgid_and_kind >> 1;
	note->is_caller = tgid_and_kind & 1;
	note->size = 0;
	/* The stack may end before so much. */
	if (!bpf_probe_read_user(note->stack, NOTE_STACK_BYTES, (void *)at->sp))
		note->size = NOTE_STACK_BYTES;
	else if (!bpf_probe_read_user(note->stack, NOTE_STACK_BYTES / 8, (void *)at->sp))
		note->size = NOTE_STACK_BYTES / 8;
	bpf_map_update_elem(&notes, key, note, MAP_UPDATE_NOEXIST);
	return 0;
}

/* The rule in force at an address; behind the innermost frame that of the call before the return address. */
INLINE struct unwind_rule *find_rule(u32 space, struct unwind_point *at, u32 is_caller, u32 tgid)
{
	u64 pc = at->pc - is_caller;
	struct window_key key = {.space = space, .number = pc >> WINDOW_BITS};
	struct unwind_window *window = bpf_map_lookup_elem(&windows, &key);
	u32 offset = pc & (WINDOW_BYTES - 1), place = 0;

	if (!window) {
		leave_note(&key, at, (u64)tgid << 1 | is_caller);
		return 0;
	}
	/* Without branches, which the verifier would follow all: 1 where a rule begins at the offset or before. Rules that
	 * are not used begin at 255, the first one at 0. */
	for (u32 i = 1; i < RULES; i++)
		place += ((u32)window->rules[i].begin - offset - 1) >> 31;
	return &window->rules[place & (RULES - 1)];
}

/* Goes to the caller by frame pointers; returns where the stack pointer is then, 0 where there is no frame. */
INLINE u64 step_by_frame_pointer(struct unwind_point *at)
{
	u64 fp = at->fp;

	if (fp < at->sp || fp - at->sp > MAX_FRAME_BYTES || fp & 7)
		return 0;
	if (bpf_probe_read_user(&at->pc, sizeof(at->pc), (void *)(fp + 8)) ||
	    bpf_probe_read_user(&at->fp, sizeof(at->fp), (void *)fp))
		return 0;
	return fp + 16;
}

INLINE u64 step_by_rule(struct unwind_point *at, struct unwind_rule *rule, u32 kind)
{
	u64 fp = at->fp, cfa = at->sp, kept = 0;
	s64 words = rule->cfa_words;

	if (kind == CFA_FP || kind == CFA_AT_FP)
		cfa = fp;
	cfa += words * 8;
	if (kind == CFA_AT_FP && bpf_probe_read_user(&cfa, sizeof(cfa), (void *)cfa))
		return 0;
	if (kind == CFA_PLT && (at->pc & 15) >= 11)
		cfa += 8;
	words = rule->pc_words;
	/* Only a leaf of arm64 takes nothing from the stack. */
	if (!words && !at->link)
		return 0;
	at->pc = at->link;
	if (words && bpf_probe_read_user(&at->pc, sizeof(at->pc), (void *)(cfa + words * 8)))
		return 0;
	words = rule->fp_words;
	if (rule->cfa & FP_AT_FP)
		kept = fp + words * 8;
	else if (words)
		kept = cfa + words * 8;
	if (kept && bpf_probe_read_user(&at->fp, sizeof(at->fp), (void *)kept))
		return 0;
	return cfa;
}

/* Returns 0 where there is no caller, or none that can be found. */
INLINE u32 step_out(struct unwind_point *at, struct unwind_rule *rule)
{
	u32 kind = rule ? rule->cfa & ~FP_AT_FP : CFA_UNKNOWN;
	u64 cfa = kind == CFA_UNKNOWN ? step_by_frame_pointer(at) : step_by_rule(at, rule, kind);

	if (cfa < at->sp || !cfa)
		return 0;
	at->sp = cfa;
	at->pc &= ADDRESS_MASK;
	at->link = 0;
	return at->pc != 0;
}

/* Where the current thread is in user mode, or was when it left it. */
INLINE struct unwind_point user_point(void)
{
	void *registers = bpf_task_pt_regs(bpf_get_current_task_btf());
	struct pt_regs___arm64 *arm64 = registers;
	struct pt_regs___x86 *x86 = registers;

	if (HAS_FIELD(arm64->pc))
		return (struct unwind_point){arm64->pc, arm64->sp, arm64->regs[29], arm64->regs[30]};
	if (HAS_FIELD(x86->ip))
		return (struct unwind_point){x86->ip, x86->sp, x86->bp, 0};
	return (struct unwind_point){};
}

/* Walks the current thread's user stack into a chain. */
static __attribute__((noinline)) u64 walk_user(struct chain *chain, u32 tgid)
{
	u32 *known = bpf_map_lookup_elem(&spaces, &tgid), space = known ? *known : 0, is_whole = 0;
	struct unwind_point at = user_point();

	if (!chain)
		return 0;
	chain->count = 0;
	if (!at.pc)
		return 0;
	for (u32 i = 0; i < CHAIN_FRAMES; i++) {
		struct unwind_rule *rule = 0;

		chain->at[i] = at.pc;
		chain->count = i + 1;
		if (space)
			rule = find_rule(space, &at, i > 0, tgid);
		if (rule && rule->cfa == CFA_END) {
			is_whole = 1;
			break;
		}
		if (!step_out(&at, rule))
			break;
	}
	if (!is_whole)
		count(COUNTER_NATIVE_CUT);
	chain->flags = is_whole ? 0 : CHAIN_CUT;
	return keep_chain(chain, tgid);
}

#endif
