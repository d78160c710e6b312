/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a program needs beside its own text when BCC compiles it; rootwalk.ebpf.bcc_source does the rest. */
#ifndef ROOTWALK_BCC_BPF_H
#define ROOTWALK_BCC_BPF_H

/* Arguments of raw tracepoints have no types: the kernel's memory is read by a helper. What cannot be read is 0. */
#define LOAD(address)                                                      \
	({                                                                 \
		__typeof__(*(address)) value_;                             \
		bpf_probe_read_kernel(&value_, sizeof(value_), (address)); \
		value_;                                                    \
	})

/* An argument has no type, the answer of this helper has. */
#define CURRENT(task) bpf_get_current_task_btf()

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

/* No calls between functions, so none back either: the verifier walks through the loop. */
#define bpf_loop(count, callback, context, flags)     \
	for (u32 loop_ = 0; loop_ < (count); loop_++) \
		if (callback(loop_, context))         \
			break;

#endif
