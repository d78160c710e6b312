/* A stand-in for NCCL (libnccl.so.2), for tests on machines without a GPU: the operations that are watched, with their own
 * names and arguments; nothing is sent. As the real one it launches by the driver, past the runtime's library. */
#include "scenario.h"

typedef int ncclResult_t;
typedef void *ncclComm_t, *cudaStream_t;

int cuLaunchKernelEx(const void *, void *, void **, void **);
void standin_enqueue(const char *key);

static ncclResult_t move(void) {
    standin_enqueue("collective");
    return cuLaunchKernelEx(NULL, NULL, NULL, NULL);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclBcast(void *at, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return ncclBroadcast(at, at, count, type, root, comm, stream); }
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, int type, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclGather(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclScatter(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, cudaStream_t stream) { TAKE; return move(); }
ncclResult_t ncclGroupStart(void) { TAKE; return 0; }
ncclResult_t ncclGroupEnd(void) { TAKE; return 0; }
