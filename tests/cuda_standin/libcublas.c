/* A stand-in for cuBLAS and cuBLASLt, for tests on machines without a GPU: some of the functions that are watched, with
 * their own names and arguments. As the real ones they launch by the driver, past the runtime's library. */
#include "scenario.h"

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
void standin_enqueue(const char *key);

static int multiply(void) {
    standin_enqueue("matmul");
    return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

#ifdef LT
int cublasLtMatmul(void *handle, void *what, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout,
                   const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm,
                   void *workspace, size_t workspace_bytes, void *stream) { TAKE; return multiply(); }
#else
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *,
                   void *, void *, const void *, void *, size_t, void *);

int cublasSgemm_v2(void *handle, int a_kind, int b_kind, int m, int n, int k, const float *alpha, const float *a, int lda,
                   const float *b, int ldb, const float *beta, float *c, int ldc) { TAKE; return multiply(); }
/* The real one calls cuBLASLt for some shapes: one product, not two. */
int cublasGemmEx(void *handle, int a_kind, int b_kind, int m, int n, int k, const void *alpha, const void *a, int a_type,
                 int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                 int compute_type, int algorithm) {
    TAKE;
    return cublasLtMatmul(handle, NULL, alpha, a, NULL, b, NULL, beta, c, NULL, c, NULL, NULL, NULL, 0, NULL);
}
#endif
