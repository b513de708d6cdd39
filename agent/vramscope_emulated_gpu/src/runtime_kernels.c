/* libcudart: kernels. Launches succeed and do nothing; what the compiler's own code registers is ignored. */
#include "runtime.h"
#include <string.h>

static cudaError_t launch(cudaStream_t stream) {
    if (eg_captured(stream))
        eg_count_captured_kernel();
    else
        eg_launched(eg_current_device());
    return cudaSuccess;
}

API cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                     cudaStream_t s) {
    return launch(s);
}
API cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                size_t shared_bytes, cudaStream_t s) {
    return launch(s);
}
API cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
    return launch(config->stream);
}
API __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
API __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                       cudaStream_t s) {
    return launch(s);
}

API cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = a->ptxVersion = eg_binary_version();
    a->maxDynamicSharedSizeBytes = (int)eg_gpu()->shared_bytes_per_multiprocessor - 1024;
    a->preferredShmemCarveout = -1;
    return cudaSuccess;
}
API cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    return cudaSuccess;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *kernel, int block,
                                                  size_t shared_bytes) {
    int threads = eg_gpu()->threads_per_multiprocessor;
    *count = block > 0 && block <= threads ? threads / block : 1;
    return cudaSuccess;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int block,
                                                           size_t shared_bytes, unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, kernel, block, shared_bytes);
}
API cudaProfilerStart(void) { return cudaSuccess; }
API cudaProfilerStop(void) { return cudaSuccess; }

/* The <<<grid, block>>> of a call is pushed by the caller and popped by the kernel's stub. */
static __thread struct call {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} calls[32];
static __thread unsigned depth;

EG_API unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                      struct CUstream_st *s) {
    if (depth == sizeof calls / sizeof *calls) return 1;
    calls[depth++] = (struct call){grid, block, shared_bytes, s};
    return 0;
}
API __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    if (!depth) return cudaErrorMissingConfiguration;
    struct call *call = &calls[--depth];
    *grid = call->grid;
    *block = call->block;
    *shared_bytes = call->shared_bytes;
    *(cudaStream_t *)stream = call->stream;
    return cudaSuccess;
}

EG_API void **CUDARTAPI __cudaRegisterFatBinary(void *binary) {
    static void *handle;
    return &handle;
}
EG_API void CUDARTAPI __cudaRegisterFatBinaryEnd(void **handle) {}
EG_API void CUDARTAPI __cudaUnregisterFatBinary(void **handle) {}
EG_API char CUDARTAPI __cudaInitModule(void **handle) { return 1; }
EG_API void CUDARTAPI __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                             int limit, void *thread, void *block, void *block_size,
                                             void *grid_size, int *warp) {}
EG_API void CUDARTAPI __cudaRegisterVar(void **handle, char *host, char *device, const char *name,
                                        int external, size_t bytes, int constant, int global) {}
