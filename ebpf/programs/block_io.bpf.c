// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What ranks read from and write to disks, and how long the disks took for it; and for everybody else.
 *
 * For every disk, direction and rank this sums the requests that have ended: their number by how long they took, their
 * bytes, the time from the request's creation to the moment in which its driver got it for the first time (queue), and
 * from there to its end (device, with repetitions). A request belongs to the process that created it; what nobody
 * watched created is slot 0, for example pages that the kernel writes back later, whoever made them dirty. A write that
 * has to wait until a disk's cache is flushed waits in the queue; fsync of a file without new data is one write of 0
 * bytes. A page that joins a request that waits already belongs to that one.
 *
 * Does not count: discards, flushes by themselves and drivers' commands, network file systems and disks in memory (they
 * make no block requests), and the wait for a control group's block limit, which comes before there is a request.
 * Devices on top of others that work in a kernel thread (loop, dm-crypt, RAID 5) have the rank's request, the disk below
 * that of slot 0.
 *
 * Of 100,000 requests some 5 to 15 were seen to end without this program being called, for a reason that is not known;
 * nothing counts them.
 *
 * Hooks: tp_btf block_io_start (6.5), else block_rq_insert, else block_rq_issue, which may run in a kernel thread;
 * block_rq_issue, block_rq_merge, block_rq_complete. Needs BTF and CAP_BPF + CAP_PERFMON. Oldest kernel: 5.15
 * (request_queue.disk; hooks have no queue argument since 5.11).
 *
 * Cost: six map operations (0.5 us) a request of any process. To read it takes 10 us a disk, direction and rank, every
 * 2 s.
 */
#include "block_io.h"
#include "counters.bpf.h"
#include "rootwalk_types.bpf.h"
#include "targets.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/linux/blk_types.h, unchanged since 4.8. */
#define REQ_OP_MASK 0xff
#define REQ_OP_WRITE 1

struct gendisk {
	s32 major;
	s32 first_minor;
	char disk_name[DISK_NAME_BYTES];
} RELOCATED;

struct request_queue {
	struct gendisk *disk;
} RELOCATED;

struct request {
	struct request_queue *q;
	u32 cmd_flags;
	u32 __data_len;
} RELOCATED;

struct open_request {
	u64 start_ns;
	u64 issued_ns; /* 0 while its driver does not have it */
	u32 slot;
	u32 bytes;
};

/* Address of a request -> when it began and for whom. When full, the oldest is pushed out: BLOCK_UNMATCHED at its end. */
struct {
	__uint(type, MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct open_request);
} requests SEC(".maps");

/* Disk, rank and direction -> sums: 56 disks of 8 ranks. User space removes ranks that have ended. When full:
 * BLOCK_TOTALS_FULL. */
struct {
	__uint(type, MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct block_key);
	__type(value, struct block_totals);
} totals SEC(".maps");

/* Whether it reads or writes a disk's data. */
INLINE int is_data(struct request *request)
{
	return (request->cmd_flags & REQ_OP_MASK) <= REQ_OP_WRITE;
}

INLINE int begin(struct request *request, u64 flags, u32 is_issued)
{
	u64 key = (u64)request, now;

	if (!is_data(request))
		return 0;
	now = bpf_ktime_get_ns();
	struct target *target = find_target(bpf_get_current_pid_tgid() >> 32);
	struct open_request opened = {.start_ns = now, .slot = target ? target->slot : 0};
	if (is_issued) {
		opened.issued_ns = now;
		opened.bytes = request->__data_len;
	}
	bpf_map_update_elem(&requests, &key, &opened, flags);
	return 0;
}

SEC("tp_btf/block_io_start")
int on_rq_start(u64 *ctx)
{
	return begin((struct request *)ctx[0], MAP_UPDATE_ANY, 0);
}

/* Only where there is no block_io_start. A request that its driver gave back is inserted again: the first one counts. */
SEC("tp_btf/block_rq_insert")
int on_rq_insert(u64 *ctx)
{
	return begin((struct request *)ctx[0], MAP_UPDATE_NOEXIST, 0);
}

SEC("tp_btf/block_rq_issue")
int on_rq_issue(u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	u64 key = (u64)request;
	struct open_request *opened = bpf_map_lookup_elem(&requests, &key);

	if (!opened)
		return begin(request, MAP_UPDATE_NOEXIST, 1);
	if (!opened->issued_ns) {
		opened->bytes = request->__data_len; /* others may have joined it meanwhile */
		opened->issued_ns = bpf_ktime_get_ns();
	}
	return 0;
}

/* The request has joined another one and never ends. */
SEC("tp_btf/block_rq_merge")
int on_rq_merge(u64 *ctx)
{
	u64 key = ctx[0];

	bpf_map_delete_elem(&requests, &key);
	return 0;
}

static __attribute__((noinline)) struct block_totals *make_totals(struct block_key *key, struct gendisk *disk)
{
	struct block_totals fresh = {};
	u32 *name = (u32 *)__builtin_preserve_access_index(&disk->disk_name);

	for (u32 i = 0; i < DISK_NAME_BYTES / sizeof(u32); i++)
		((u32 *)fresh.name)[i] = name[i];
	bpf_map_update_elem(&totals, key, &fresh, MAP_UPDATE_NOEXIST);
	return bpf_map_lookup_elem(&totals, key);
}

INLINE u32 duration_class(u64 time_ns)
{
	u64 limit_ns = SHORTEST_CLASS_NS;

	for (u32 i = 0; i < DURATION_CLASSES - 1; i++) {
		if (time_ns < limit_ns)
			return i;
		limit_ns *= 10;
	}
	return DURATION_CLASSES - 1;
}

SEC("tp_btf/block_rq_complete")
int on_rq_complete(u64 *ctx)
{
	struct request *request = (struct request *)ctx[0];
	u64 address = (u64)request;
	u32 ended_bytes = ctx[2];
	struct gendisk *disk = request->q->disk;
	struct open_request *found;

	if (!is_data(request) || ended_bytes < request->__data_len)
		return 0; /* the rest comes later */
	found = bpf_map_lookup_elem(&requests, &address);
	if (!found) {
		if (ended_bytes) /* a write that needed a flush ends a second time, empty */
			count(BLOCK_UNMATCHED);
		return 0;
	}
	struct open_request ended = *found;
	u64 now = bpf_ktime_get_ns(), issued_ns = ended.issued_ns ? ended.issued_ns : now;
	bpf_map_delete_elem(&requests, &address);
	struct block_key key = {.device = (u32)disk->major << 20 | disk->first_minor, .slot = ended.slot,
				.is_write = request->cmd_flags & REQ_OP_WRITE};
	struct block_totals *sums = bpf_map_lookup_elem(&totals, &key);
	if (!sums)
		sums = make_totals(&key, disk);
	if (!sums) {
		count(BLOCK_TOTALS_FULL);
		return 0;
	}
	u32 class = duration_class(now - ended.start_ns);
	if (class < DURATION_CLASSES)
		__sync_fetch_and_add(&sums->operations[class], 1);
	__sync_fetch_and_add(&sums->bytes, ended.bytes);
	__sync_fetch_and_add(&sums->queue_ns, issued_ns - ended.start_ns);
	__sync_fetch_and_add(&sums->device_ns, now - issued_ns);
	return 0;
}
