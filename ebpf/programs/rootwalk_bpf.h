/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a Rootwalk BPF program needs from a compiler and the kernel, without libbpf's or the kernel's headers.
 * Source of helper numbers: include/uapi/linux/bpf.h, which never renumbers them. */
#ifndef ROOTWALK_BPF_H
#define ROOTWALK_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* Map definitions in the BTF form that libbpf reads. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) __typeof__(value) *name

enum { MAP_TYPE_HASH = 1, MAP_TYPE_ARRAY = 2, MAP_TYPE_PERCPU_ARRAY = 6, MAP_TYPE_LRU_HASH = 9, MAP_TYPE_RINGBUF = 27 };
enum { MAP_UPDATE_ANY = 0, MAP_UPDATE_NOEXIST = 1, RINGBUF_NO_WAKEUP = 1 };
#define ERROR_FULL (-7) /* of an update: the map is full (E2BIG) */

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_ringbuf_output)(void *ring, void *record, u64 size, u64 flags) = (void *)130;
static void *(*bpf_get_current_task_btf)(void) = (void *)158;
static long (*bpf_for_each_map_elem)(void *map, void *callback, void *context, u64 flags) = (void *)164;
static u64 (*bpf_get_attach_cookie)(void *context) = (void *)174;
static void *(*bpf_task_pt_regs)(void *task) = (void *)175;
static long (*bpf_loop)(u32 count, void *callback, void *context, u64 flags) = (void *)181;

#ifdef ROOTWALK_BCC
#include "bcc.bpf.h"
#else
/* What lies at an address in the kernel's memory, inside an argument of the hook. */
#define LOAD(address) (*(address))
/* A number of which the verifier need not follow every value, and memory that is 0; bcc.bpf.h says why it must not. */
#define FORGET(number, memory) (number)
/* An argument of the hook that is the task which runs now. */
#define CURRENT(task) (task)
/* Whether the running kernel has this field; the loader answers. */
#define HAS_FIELD(field) __builtin_preserve_field_info(field, 2)
#endif

#endif
