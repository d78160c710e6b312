/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The same words for a program that BCC compiles (rootwalk.ebpf.bcc_source says what else it needs).
 *
 * BCC brings the helpers. It has neither typed arguments (raw tracepoints instead of tp_btf) nor calls between
 * functions: what is not inline has to be, and bpf_loop, which calls back, is a loop that the verifier walks through. */
#ifndef ROOTWALK_BCC_BPF_H
#define ROOTWALK_BCC_BPF_H

#define NOINLINE INLINE

#define ADDRESS(pointer, field) (&(pointer)->field)
#define READ(pointer, field) READ_AT(ADDRESS(pointer, field))
#define READ_AT(address)                                                   \
	({                                                                 \
		__typeof__(*(address)) value_;                             \
		bpf_probe_read_kernel(&value_, sizeof(value_), (address)); \
		value_;                                                    \
	})

#define bpf_loop(count, callback, context, flags)    \
	for (u32 loop_ = 0; loop_ < (count); loop_++) \
		if (callback(loop_, context))         \
			break;

#endif
