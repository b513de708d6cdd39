/* Plain allocations: cudaMalloc and cudaFree, and the host's pinned and managed memory. */
#include "emulated_gpu.h"
#include <pthread.h>
#include <sys/mman.h>

/* As on the real driver, allocations from 1 MiB on take whole granules; smaller ones share granules. */
static size_t small_bytes[EG_MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static int is_small(size_t bytes) { return bytes < EG_MIB; }
static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void *eg_malloc(int device, size_t bytes) {
    eg_charge_context(device);
    size_t charge = round_up(bytes, EG_GRANULE);
    pthread_mutex_lock(&mutex);
    if (is_small(bytes)) {
        size_t before = small_bytes[device], after = before + round_up(bytes, 512);
        charge = round_up(after, EG_GRANULE) - round_up(before, EG_GRANULE);
    }
    int full = charge && eg_charge(device, charge);
    if (!full && is_small(bytes)) small_bytes[device] += round_up(bytes, 512);
    pthread_mutex_unlock(&mutex);
    if (full) return NULL;
    void *at = eg_map_pages(bytes, is_small(bytes) ? EG_PAGE : EG_GRANULE, 1);
    if (at) eg_add_range(at, bytes, EG_DEVICE, device);
    return at;
}

static int release(void *at, eg_kind kind, eg_range *range) {
    if (eg_find_range(at, range) || range->base != at || range->kind != kind) return -1;
    eg_drop_range(at);
    munmap(at, round_up(range->bytes, EG_PAGE));
    return 0;
}

int eg_free(void *at) {
    eg_range range;
    if (release(at, EG_DEVICE, &range)) return -1;
    size_t charge = round_up(range.bytes, EG_GRANULE);
    pthread_mutex_lock(&mutex);
    if (is_small(range.bytes)) {
        size_t before = small_bytes[range.device], less = round_up(range.bytes, 512);
        size_t after =
            before - (less < before ? less : before); /* a forked child frees what it never asked for */
        charge = round_up(before, EG_GRANULE) - round_up(after, EG_GRANULE);
        small_bytes[range.device] = after;
    }
    if (charge) eg_uncharge(range.device, charge);
    pthread_mutex_unlock(&mutex);
    return 0;
}

void *eg_host_alloc(size_t bytes, eg_kind kind) {
    void *at = eg_map_pages(bytes, EG_PAGE, 1);
    if (at) eg_add_range(at, bytes, kind, 0);
    return at;
}

int eg_host_free(void *at, eg_kind kind) {
    eg_range range;
    return release(at, kind, &range);
}
