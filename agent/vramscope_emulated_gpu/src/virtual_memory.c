/* libcuda.so.1: virtual memory management, on which PyTorch's expandable segments stand.
 * Physical chunks are charged when they are made; reserved addresses and mappings cost nothing. */
#include "emulated_gpu.h"
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API EG_API CUresult CUDAAPI
#define OK  CUDA_SUCCESS

typedef struct {
    size_t bytes;
    int device, references; /* handles that are held, and mappings */
} chunk;

typedef struct mapping {
    struct mapping *next;
    char *at;
    size_t bytes;
    chunk *chunk;
} mapping;

static mapping *mappings;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static chunk *chunk_of(CUmemGenericAllocationHandle handle) { return (chunk *)(uintptr_t)handle; }

static void drop_reference(chunk *c) {
    if (--c->references) return;
    eg_uncharge(c->device, c->bytes);
    free(c);
}

API cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *p,
                                  CUmemAllocationGranularity_flags flags) {
    *bytes = EG_GRANULE;
    return OK;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *p,
                unsigned long long flags) {
    if (!bytes || bytes % EG_GRANULE) return CUDA_ERROR_INVALID_VALUE;
    if (p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    int device = eg_physical(p->location.id);
    eg_charge_context(device);
    if (eg_charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    chunk *c = malloc(sizeof *c);
    *c = (chunk){bytes, device, 1};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)c;
    return OK;
}

API cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&mutex);
    drop_reference(chunk_of(handle));
    pthread_mutex_unlock(&mutex);
    return OK;
}

API cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
    void *pages = eg_map_pages(bytes, alignment > EG_GRANULE ? alignment : EG_GRANULE, 0);
    if (!pages) return CUDA_ERROR_OUT_OF_MEMORY;
    eg_add_range(pages, bytes, EG_RESERVED, 0);
    *at = (CUdeviceptr)pages;
    return OK;
}

API cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    if (eg_drop_range((void *)at)) return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)at, bytes);
    return OK;
}

API cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
    mapping *m = malloc(sizeof *m);
    pthread_mutex_lock(&mutex);
    chunk_of(handle)->references++;
    *m = (mapping){mappings, (char *)at, bytes, chunk_of(handle)};
    mappings = m;
    pthread_mutex_unlock(&mutex);
    return OK;
}

API cuMemUnmap(CUdeviceptr at, size_t bytes) {
    char *start = (char *)at, *end = start + bytes;
    pthread_mutex_lock(&mutex);
    for (mapping **link = &mappings; *link;) {
        mapping *m = *link;
        if (m->at < start || m->at >= end) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        drop_reference(m->chunk);
        free(m);
    }
    pthread_mutex_unlock(&mutex);
    /* fresh pages in place of the old ones: their memory goes back, the addresses stay reserved */
    mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return OK;
}

API cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : OK;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *p, CUmemGenericAllocationHandle handle) {
    memset(p, 0, sizeof *p);
    p->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p->location.id = eg_visible(chunk_of(handle)->device);
    return OK;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    for (mapping *m = mappings; m && result != OK; m = m->next) {
        if ((char *)at < m->at || (char *)at >= m->at + m->bytes) continue;
        m->chunk->references++;
        *handle = (uintptr_t)m->chunk;
        result = OK;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
