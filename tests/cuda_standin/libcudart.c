/* A stand-in for the CUDA runtime (libcudart), for tests on machines without a GPU: the functions that are watched, with
 * their own names and arguments. As the real one it calls the driver, here libcuda.c. scenario.h says what it plays. */
#include "scenario.h"

typedef int cudaError_t;
typedef void *cudaStream_t, *cudaEvent_t, *cudaGraphExec_t;
typedef struct { unsigned x, y, z; } dim3;
typedef unsigned long long Address;

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuLaunchKernelEx(const void *, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
int cuGraphLaunch(void *, void *);
int cuMemcpy(Address, Address, size_t);
int cuMemcpyAsync(Address, Address, size_t, void *);
int cuMemcpyHtoD_v2(Address, const void *, size_t);
int cuMemcpyHtoDAsync_v2(Address, const void *, size_t, void *);
int cuMemcpyDtoH_v2(void *, Address, size_t);
int cuMemcpyDtoHAsync_v2(void *, Address, size_t, void *);
int cuMemcpyDtoD_v2(Address, Address, size_t);
int cuMemcpyDtoDAsync_v2(Address, Address, size_t, void *);
int cuMemcpyPeer(Address, void *, Address, void *, size_t);
int cuMemcpyPeerAsync(Address, void *, Address, void *, size_t, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
int cuEventSynchronize(void *);
int cuMemAlloc_v2(Address *, size_t);
int cuMemAllocAsync(Address *, size_t, void *);
int cuMemFree_v2(Address);
int cuMemFreeAsync(Address, void *);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);

#define AT(pointer) ((Address)(uintptr_t)(pointer))

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    TAKE;
    return cuLaunchKernel((void *)f, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments, NULL);
}
cudaError_t cudaLaunchKernelExC(const void *config, const void *f, void **arguments) {
    TAKE;
    return cuLaunchKernelEx(config, (void *)f, arguments, NULL);
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    TAKE;
    return cuLaunchCooperativeKernel((void *)f, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { TAKE; return cuGraphLaunch(graph, stream); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    TAKE;
    switch (kind) {
    case 1: return cuMemcpyHtoD_v2(AT(to), from, bytes);
    case 2: return cuMemcpyDtoH_v2(to, AT(from), bytes);
    case 3: return cuMemcpyDtoD_v2(AT(to), AT(from), bytes);
    default: return cuMemcpy(AT(to), AT(from), bytes);
    }
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream) {
    TAKE;
    switch (kind) {
    case 1: return cuMemcpyHtoDAsync_v2(AT(to), from, bytes, stream);
    case 2: return cuMemcpyDtoHAsync_v2(to, AT(from), bytes, stream);
    case 3: return cuMemcpyDtoDAsync_v2(AT(to), AT(from), bytes, stream);
    default: return cuMemcpyAsync(AT(to), AT(from), bytes, stream);
    }
}
cudaError_t cudaMemcpyPeer(void *to, int there, const void *from, int here, size_t bytes) {
    TAKE;
    return cuMemcpyPeer(AT(to), NULL, AT(from), NULL, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t bytes, cudaStream_t stream) {
    TAKE;
    return cuMemcpyPeerAsync(AT(to), NULL, AT(from), NULL, bytes, stream);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { TAKE; return cuStreamSynchronize(stream); }
cudaError_t cudaDeviceSynchronize(void) { TAKE; return cuCtxSynchronize(); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { TAKE; return cuEventSynchronize(event); }
cudaError_t cudaMalloc(void **at, size_t bytes) { TAKE; return cuMemAlloc_v2((Address *)at, bytes); }
cudaError_t cudaMallocAsync(void **at, size_t bytes, cudaStream_t stream) { TAKE; return cuMemAllocAsync((Address *)at, bytes, stream); }
cudaError_t cudaFree(void *at) { TAKE; return cuMemFree_v2(AT(at)); }
cudaError_t cudaFreeAsync(void *at, cudaStream_t stream) { TAKE; return cuMemFreeAsync(AT(at), stream); }
cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags) { TAKE; return cuMemHostAlloc(at, bytes, flags); }
cudaError_t cudaFreeHost(void *at) { TAKE; return cuMemFreeHost(at); }
