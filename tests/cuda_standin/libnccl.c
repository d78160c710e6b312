/* A stand-in for NCCL (libnccl.so.2), for tests on machines without a GPU: the functions that are watched, with their own
 * names and arguments; nothing is sent. As the real one it launches by the driver, past the runtime's library.
 *
 * A communicator is a place in a table, the first free one: an address comes again as soon as it can. Other communicators
 * than these are taken as well. An operation of type 100 fails; a pointer below 4096 is left alone; with `lenient` in the
 * scenario numbers of ranks are not checked, with `in_progress` creations and operations go on behind the call, with
 * `late` what was split is made when somebody asks for errors.
 */
#include "scenario.h"

typedef int ncclResult_t;
typedef void *ncclComm_t, *cudaStream_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef void ncclConfig_t;
enum { ncclSuccess = 0, ncclInvalidArgument = 4, ncclInProgress = 7, BAD_TYPE = 100, LOWEST_POINTER = 4096 };

int cuLaunchKernelEx(const void *, void *, void **, void **);
void standin_enqueue(const char *key);

static ncclResult_t done(void) { return told("in_progress") > 0 ? ncclInProgress : ncclSuccess; }

static ncclResult_t move(int type) {
    if (type == BAD_TYPE) return ncclInvalidArgument;
    standin_enqueue("collective");
    cuLaunchKernelEx(NULL, NULL, NULL, NULL);
    return done();
}

static struct { char is_used, room[255]; } table[64];

static ncclResult_t make(ncclComm_t *at) {
    if ((uintptr_t)at < LOWEST_POINTER) return at ? done() : ncclInvalidArgument;
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        if (!table[i].is_used) {
            table[i].is_used = 1;
            *at = &table[i];
            return done();
        }
    return ncclInvalidArgument;
}

static ncclResult_t make_member(ncclComm_t *at, int nranks, int rank) {
    if (told("lenient") <= 0 && (nranks < 1 || rank < 0 || rank >= nranks)) return ncclInvalidArgument;
    return make(at);
}

static ncclResult_t end(ncclComm_t comm) {
    if (comm) *(char *)comm = 0;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) { TAKE; return make_member(comm, nranks, rank); }
ncclResult_t make_by_config(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) { return make_member(comm, nranks, rank); }
#ifdef __x86_64__
/* Begins as the real one does: a probe there is dear. */
__asm__(".globl ncclCommInitRankConfig\n.type ncclCommInitRankConfig, @function\n"
        "ncclCommInitRankConfig: movabs $0, %r10\n jmp make_by_config@PLT\n.size ncclCommInitRankConfig, .-ncclCommInitRankConfig\n");
#else
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config) { return make_by_config(comm, nranks, id, rank, config); }
#endif
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int ids, ncclUniqueId *id, ncclConfig_t *config) { TAKE; return make_member(comm, nranks, rank); }
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    TAKE;
    for (int i = 0; i < count; i++) make(comms + i);
    return ncclSuccess;
}
static ncclComm_t *late[64];
static int late_count;
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    while (late_count > 0) make(late[--late_count]);
    return *error = ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int colour, int key, ncclComm_t *child, ncclConfig_t *config) {
    TAKE;
    if (!comm) return ncclInvalidArgument;
    if (colour >= 0 && told("late") > 0) {
        *child = NULL;
        late[late_count++] = child;
        return ncclInProgress;
    }
    if (colour >= 0) return make(child);
    *child = NULL;
    return colour == -1 ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *child, ncclConfig_t *config, int flags) { TAKE; return make(child); }
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *grown, ncclConfig_t *config) { TAKE; return make(grown); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { TAKE; return end(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { TAKE; return end(comm); }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclBcast(void *at, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return ncclBroadcast(at, at, count, type, root, comm, stream); }
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, int type, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclGather(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclScatter(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(type); }
ncclResult_t ncclGroupStart(void) { TAKE; return 0; }
ncclResult_t ncclGroupEnd(void) { TAKE; return 0; }
