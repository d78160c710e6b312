/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Loops without bpf_loop: kernels before 5.17 do not have it, and BCC's programs have no functions to call back. */
#ifndef ROOTWALK_PLAIN_LOOPS_BPF_H
#define ROOTWALK_PLAIN_LOOPS_BPF_H

/* The verifier walks through a loop once for each way that its numbers came about, which is too often for it where a
 * loop lies in another. What is read back from memory came about in one way. */
#define FORGET(number, memory)                                \
	({                                                    \
		volatile __typeof__(number) *memory_ = (memory); \
		*memory_ = (number);                          \
		__typeof__(number) kept_ = *memory_;          \
		*memory_ = 0;                                 \
		kept_;                                        \
	})

/* No calls back: the verifier walks through the loop. */
#define bpf_loop(count, callback, context, flags)     \
	for (u32 loop_ = 0; loop_ < (count); loop_++) \
		if (callback(loop_, context))         \
			break;

#endif
