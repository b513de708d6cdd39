/* libcudart: memory, copies, and the counters of the stream-ordered pool. */
#include "runtime.h"
#include <pthread.h>
#include <string.h>

API cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    eg_memory_info(eg_current_device(), free_bytes, total_bytes);
    return cudaSuccess;
}
API cudaMalloc(void **at, size_t bytes) {
    if (!at) return eg_error(cudaErrorInvalidValue);
    *at = bytes ? eg_malloc(eg_current_device(), bytes) : NULL;
    return *at || !bytes ? cudaSuccess : eg_error(cudaErrorMemoryAllocation);
}
API cudaFree(void *at) {
    if (at) return eg_free(at) && eg_host_free(at, EG_MANAGED) ? eg_error(cudaErrorInvalidValue) : cudaSuccess;
    eg_current_device(); /* cudaFree(NULL) is the customary way to make a context */
    return cudaSuccess;
}
/* Managed memory lies with the host, and is charged to no device: on a card it is there where it was touched last. */
API cudaMallocManaged(void **at, size_t bytes, unsigned flags) {
    if (!at || !bytes) return eg_error(cudaErrorInvalidValue);
    *at = eg_host_alloc(bytes, EG_MANAGED);
    return *at ? cudaSuccess : eg_error(cudaErrorMemoryAllocation);
}
static cudaError_t prefetch(const void *at) {
    eg_range range;
    int managed = !eg_find_range(at, &range) && range.kind == EG_MANAGED;
    return managed ? cudaSuccess : eg_error(cudaErrorInvalidValue);
}
#if CUDART_VERSION >= 13000
API cudaMemPrefetchAsync(const void *at, size_t bytes, struct cudaMemLocation location, unsigned flags,
                         cudaStream_t stream) {
    return prefetch(at);
}
#else
API cudaMemPrefetchAsync(const void *at, size_t bytes, int device, cudaStream_t stream) { return prefetch(at); }
#endif
API cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
    *at = eg_host_alloc(bytes ? bytes : 1, EG_HOST);
    return *at ? cudaSuccess : eg_error(cudaErrorMemoryAllocation);
}
API cudaMallocHost(void **at, size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
API cudaFreeHost(void *at) {
    return !at || !eg_host_free(at, EG_HOST) ? cudaSuccess : eg_error(cudaErrorInvalidValue);
}
API cudaHostRegister(void *at, size_t bytes, unsigned flags) {
    eg_add_range(at, bytes, EG_HOST, 0);
    return cudaSuccess;
}
API cudaHostUnregister(void *at) { return eg_drop_range(at) ? eg_error(cudaErrorInvalidValue) : cudaSuccess; }
API cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    *device = host;
    return cudaSuccess;
}

API cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *at) {
    eg_range range;
    memset(a, 0, sizeof *a);
    if (eg_find_range(at, &range)) {
        a->type = cudaMemoryTypeUnregistered;
        a->device = cudaInvalidDeviceId;
        a->hostPointer = (void *)at;
        return cudaSuccess;
    }
    a->type = range.kind == EG_HOST      ? cudaMemoryTypeHost
              : range.kind == EG_MANAGED ? cudaMemoryTypeManaged
                                         : cudaMemoryTypeDevice;
    a->device = eg_visible(range.device);
    a->devicePointer = (void *)at;
    a->hostPointer = eg_with_host(range.kind) ? (void *)at : NULL;
    return cudaSuccess;
}

/* copies */
API cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    eg_copy(to, from, bytes);
    return cudaSuccess;
}
API cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    eg_copy(to, from, bytes);
    return cudaSuccess;
}
API cudaMemcpyPeerAsync(void *to, int device, const void *from, int peer, size_t bytes, cudaStream_t stream) {
    eg_copy(to, from, bytes);
    return cudaSuccess;
}
API cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        eg_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
API cudaMemset(void *at, int value, size_t bytes) {
    eg_fill(at, value, bytes);
    return cudaSuccess;
}
API cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t s) {
    eg_fill(at, value, bytes);
    return cudaSuccess;
}
API cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                       enum cudaMemcpyKind kind) {
    memcpy((char *)symbol + offset, from, bytes);
    return cudaSuccess;
}
API cudaGetSymbolAddress(void **at, const void *symbol) {
    *at = (void *)symbol;
    return cudaSuccess;
}

/* The stream-ordered pool (backend:cudaMallocAsync) caches nothing here; it only counts. */
static struct {
    uint64_t used_bytes, peak_bytes;
} pools[EG_MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static int device_of(cudaMemPool_t pool) {
    return (int)(((char *)pool - (char *)pools) / (long)sizeof *pools);
}

API cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = (cudaMemPool_t)(pools + eg_physical(device));
    return cudaSuccess;
}
API cudaMallocAsync(void **at, size_t bytes, cudaStream_t stream) {
    eg_range range;
    cudaError_t error = cudaMalloc(at, bytes);
    if (error || !bytes || eg_find_range(*at, &range)) return error;
    pthread_mutex_lock(&mutex);
    uint64_t used = pools[range.device].used_bytes += bytes;
    if (used > pools[range.device].peak_bytes) pools[range.device].peak_bytes = used;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}
API cudaFreeAsync(void *at, cudaStream_t stream) {
    eg_range range;
    if (at && !eg_find_range(at, &range)) {
        pthread_mutex_lock(&mutex);
        pools[range.device].used_bytes -= range.bytes;
        pthread_mutex_unlock(&mutex);
    }
    return cudaFree(at);
}
API cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    int device = device_of(pool);
    switch (attribute) {
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemCurrent: *(uint64_t *)value = pools[device].used_bytes; break;
    case cudaMemPoolAttrUsedMemHigh:
    case cudaMemPoolAttrReservedMemHigh: *(uint64_t *)value = pools[device].peak_bytes; break;
    default: *(uint64_t *)value = 0;
    }
    return cudaSuccess;
}
API cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    int device = device_of(pool);
    if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh)
        pools[device].peak_bytes = pools[device].used_bytes;
    return cudaSuccess;
}
API cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count) {
    return cudaSuccess;
}
API cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) { return cudaSuccess; }
