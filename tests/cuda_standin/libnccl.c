/* A stand-in for NCCL (libnccl.so.2), for tests on machines without a GPU: the functions that are watched, with their own
 * names and arguments; nothing is sent. As the real one it launches by the driver, past the runtime's library.
 *
 * A communicator is a place in a table, the first free one: an address comes again as soon as it can. Other communicators
 * than these are taken as well. An operation of type 100 fails; a pointer below 4096 is left alone; with `lenient` in the
 * scenario numbers of ranks are not checked, with `in_progress` creations and operations go on behind the call, with
 * `late` what was split is made when somebody asks for errors.
 *
 * With NCCL_DEBUG=INFO and NCCL_DEBUG_FILE it writes over what each communicator sends, as NCCL 2.27 does: to InfiniBand,
 * or, with `sockets` in the scenario while it is made, to TCP.
 */
#define _GNU_SOURCE
#include "scenario.h"
#include <strings.h>

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

static char host[64];

/* The debug file, with %h and %p in its name told; NULL where none is wanted. */
static FILE *open_log(void) {
    const char *level = getenv("NCCL_DEBUG"), *from = getenv("NCCL_DEBUG_FILE");
    char name[4096];
    size_t length = 0;
    if (!level || strcasecmp(level, "INFO") || !from) return NULL;
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    for (; *from && length < sizeof name - sizeof host; from++)
        if (*from != '%') name[length++] = *from;
        else if (*++from == 'h') length += sprintf(name + length, "%s", host);
        else if (*from == 'p') length += sprintf(name + length, "%d", getpid());
        else if (*from) name[length++] = *from;
        else break;
    name[length] = 0;
    return fopen(name, "w");
}

static void tell_ways(int nranks, int rank) {
    static FILE *log;
    if (nranks < 2 || rank < 0 || rank >= nranks || !(log || (log = open_log()))) return;
    int is_socket = told("sockets") > 0, next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks;
    const char *network = is_socket ? "Socket" : "IB";
    char who[128];
    sprintf(who, "%s:%d:%d [%d] NCCL INFO", host, getpid(), gettid(), rank);
    if (is_socket) fprintf(log, "%s NET/IB : No device found.\n%s NET/Socket : Using [0]eth0:10.0.0.1<0>\n", who, who);
    else fprintf(log, "%s NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n", who);
    fprintf(log, "%s Using network %s\n", who, network);
    for (int channel = 0; channel < 2; channel++) {
        fprintf(log, "%s Channel %02d/0 : %d[%d] -> %d[%d] [receive] via NET/%s/0\n", who, channel, before, before, rank,
                rank, network);
        fprintf(log, "%s Channel %02d/0 : %d[%d] -> %d[%d] [send] via NET/%s/0\n", who, channel, rank, rank, next, next,
                network);
    }
    fprintf(log, "%s Connected all rings, use ring PXN 0 GDR 0\n", who);
    fflush(log);
}

static ncclResult_t make_member(ncclComm_t *at, int nranks, int rank) {
    if (told("lenient") <= 0 && (nranks < 1 || rank < 0 || rank >= nranks)) return ncclInvalidArgument;
    ncclResult_t result = make(at);
    if ((uintptr_t)at >= LOWEST_POINTER && result != ncclInvalidArgument) tell_ways(nranks, rank);
    return result;
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
