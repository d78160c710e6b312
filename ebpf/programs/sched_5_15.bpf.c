/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* sched.bpf.c for kernels whose sched_switch has three arguments, without the state of the thread that leaves: before
 * 5.18, but for those to which a distribution has added it. Everything that is said there is true here, but that the
 * state is read from the thread, and that the verifier walks through the loop over slices.
 *
 * Hooks: as there. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.15 (bpf_task_pt_regs).
 */
#define BEFORE_5_18
#include "sched.bpf.c"
