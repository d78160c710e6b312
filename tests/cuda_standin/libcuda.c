/* A stand-in for NVIDIA's driver library (libcuda.so.1), for tests on machines without a GPU: no driver, no device. It
 * has the functions that are watched, with their own names and arguments, and one device that is a time until which it
 * is busy. scenario.h says what it plays. */
#include "scenario.h"

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *CUstream, *CUevent, *CUfunction, *CUgraphExec, *CUcontext;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double busy_until_s;

/* For the other stand-ins: give the device something to do. */
void standin_enqueue(const char *key) {
    double seconds = told(key);
    if (seconds <= 0) return;
    pthread_mutex_lock(&lock);
    double now = now_s();
    busy_until_s = (busy_until_s > now ? busy_until_s : now) + seconds;
    pthread_mutex_unlock(&lock);
}

static void wait_for_device(void) {
    pthread_mutex_lock(&lock);
    double end_s = busy_until_s;
    pthread_mutex_unlock(&lock);
    wait_until(end_s);
}

#define LAUNCH(key) TAKE; standin_enqueue(key); return 0
#define COPY_ASYNC TAKE; standin_enqueue("copy"); return 0
#define TRANSFER_ASYNC TAKE; standin_enqueue("transfer"); return 0
#define TRANSFER TAKE; standin_enqueue("transfer"); wait_for_device(); return 0
#define COPY TAKE; standin_enqueue("copy"); wait_for_device(); return 0
#define WAIT TAKE; wait_for_device(); return 0

CUresult cuInit(unsigned flags) { return 0; }
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra) { LAUNCH("kernel"); }
CUresult cuLaunchKernelEx(const void *config, CUfunction f, void **arguments, void **extra) { LAUNCH("kernel"); }
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **arguments) { LAUNCH("kernel"); }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { LAUNCH("graph"); }
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { COPY; }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { COPY_ASYNC; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) { COPY; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) { COPY_ASYNC; }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { COPY; }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) { COPY_ASYNC; }
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) { COPY; }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { COPY_ASYNC; }
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes) { TRANSFER; }
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t bytes,
                           CUstream stream) { TRANSFER_ASYNC; }
CUresult cuStreamSynchronize(CUstream stream) { WAIT; }
CUresult cuCtxSynchronize(void) { WAIT; }
CUresult cuEventSynchronize(CUevent event) { WAIT; }
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) { TAKE; *at = 0x7000000; return 0; }
CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream) { TAKE; *at = 0x7000000; return 0; }
CUresult cuMemCreate(unsigned long long *handle, size_t bytes, const void *kind, unsigned long long flags) { TAKE; *handle = 1; return 0; }
CUresult cuMemRelease(unsigned long long handle) { TAKE; return 0; }
CUresult cuMemFree_v2(CUdeviceptr at) { WAIT; }
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) { TAKE; return 0; }
CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { TAKE; *at = malloc(bytes); return 0; }
CUresult cuMemAllocHost_v2(void **at, size_t bytes) { TAKE; *at = malloc(bytes); return 0; }
CUresult cuMemFreeHost(void *at) { TAKE; free(at); return 0; }
