/* Which addresses are whose: a sorted array of ranges, and the pages under them. */
#include "emulated_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static eg_range *ranges; /* by base, rising; they never overlap */
static size_t count, room;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static size_t first_above(const char *at) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].base <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void eg_add_range(void *base, size_t bytes, eg_kind kind, int device) {
    pthread_mutex_lock(&mutex);
    if (count == room) {
        room = room ? 2 * room : 256;
        ranges = realloc(ranges, room * sizeof *ranges);
        if (!ranges) abort();
    }
    size_t i = first_above(base);
    memmove(ranges + i + 1, ranges + i, (count++ - i) * sizeof *ranges);
    ranges[i] = (eg_range){base, bytes, kind, device};
    pthread_mutex_unlock(&mutex);
}

int eg_find_range(const void *at, eg_range *out) {
    pthread_mutex_lock(&mutex);
    size_t i = first_above(at);
    int found = i && (const char *)at < ranges[i - 1].base + ranges[i - 1].bytes;
    if (found && out) *out = ranges[i - 1];
    pthread_mutex_unlock(&mutex);
    return found ? 0 : -1;
}

int eg_drop_range(void *base) {
    pthread_mutex_lock(&mutex);
    size_t i = first_above(base);
    int found = i && ranges[i - 1].base == base;
    if (found) memmove(ranges + i - 1, ranges + i, (count-- - i) * sizeof *ranges);
    pthread_mutex_unlock(&mutex);
    return found ? 0 : -1;
}

/* Pages that read as zeros and cost no memory until they are written. */
void *eg_map_pages(size_t bytes, size_t alignment, int writable) {
    if (alignment < EG_PAGE) alignment = EG_PAGE;
    bytes = (bytes + EG_PAGE - 1) & ~(EG_PAGE - 1);
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_NONE;
    char *whole =
        mmap(NULL, bytes + alignment, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return NULL;
    char *pages = (char *)(((uintptr_t)whole + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (pages > whole) munmap(whole, (size_t)(pages - whole));
    munmap(pages + bytes, (size_t)(whole + alignment - pages));
    madvise(pages, bytes, MADV_DONTDUMP);
    if (writable) madvise(pages, bytes, MADV_NOHUGEPAGE); /* one write would otherwise cost 2 MiB */
    return pages;
}
