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

#include "plain_loops.bpf.h"

#endif
