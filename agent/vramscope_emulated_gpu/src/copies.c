/* What becomes of data that is copied to the device and back.
 *
 * No kernel ever writes, so with real copies a block would hold whatever some earlier tensor left there.
 * nonzero() would then read a random count and ask for exabytes, or for 60 GB of host memory, which happened.
 * Hence the default, EMULATED_GPU_DATA=zero: the device takes no data, reads as zeros and costs no host
 * memory. One thing is remembered: what the host wrote in small pieces, until the next kernel runs. That is
 * how DistributedDataParallel compares its parameters' shapes over the ranks, and no stale number can come of
 * it, for whatever produces a number on the device is a kernel. With EMULATED_GPU_DATA=real, copies and fills
 * are done. */
#include "emulated_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REMEMBERED       64
#define REMEMBERED_BYTES ((size_t)64 << 10)

typedef struct {
    const char *at;
    size_t bytes;
    uint64_t launches; /* how many kernels had run by then */
    char *data;
} written;

static written recent[REMEMBERED];
static unsigned next;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static int data_is_real(void) {
    static int real = -1;
    if (real < 0) real = eg_setting("DATA") && !strcmp(eg_setting("DATA"), "real");
    return real;
}

static int on_device(const void *at) {
    eg_range range;
    return !eg_find_range(at, &range) && !eg_with_host(range.kind);
}

static void forget(const char *at, size_t bytes) {
    for (written *w = recent; w < recent + REMEMBERED; w++)
        if (w->at < at + bytes && at < w->at + w->bytes) w->bytes = 0;
}

static void remember(const char *at, const void *data, size_t bytes) {
    if (bytes > REMEMBERED_BYTES) return;
    written *w = &recent[next++ % REMEMBERED];
    char *room = realloc(w->data, bytes);
    if (!room) return;
    memmove(room, data, bytes);
    *w = (written){at, bytes, eg_own_launches(), room};
}

static const char *recall(const char *at, size_t bytes) {
    for (written *w = recent; w < recent + REMEMBERED; w++)
        if (w->bytes && at >= w->at && at + bytes <= w->at + w->bytes && w->launches == eg_own_launches())
            return w->data + (at - w->at);
    return NULL;
}

void eg_copy(void *to, const void *from, size_t bytes) {
    if (!bytes || to == from) return;
    int from_device = on_device(from), to_device = on_device(to);
    if (data_is_real() || (!from_device && !to_device)) {
        memmove(to, from, bytes);
        return;
    }
    pthread_mutex_lock(&mutex);
    const char *known = from_device ? recall(from, bytes) : from;
    int unknown = !to_device && !known;
    if (to_device) {
        char *copy =
            known && from_device && bytes <= REMEMBERED_BYTES ? memcpy(malloc(bytes), known, bytes) : NULL;
        forget(to, bytes);
        if (known) remember(to, copy ? copy : known, bytes);
        free(copy);
    } else if (known)
        memcpy(to, known, bytes);
    pthread_mutex_unlock(&mutex);
    if (unknown) eg_read(to, bytes); /* without the lock: the watcher may run Python */
}

void eg_fill(void *at, int value, size_t bytes) {
    if (!on_device(at)) {
        memset(at, value, bytes);
        return;
    }
    if (!data_is_real()) {
        pthread_mutex_lock(&mutex);
        forget(at, bytes);
        pthread_mutex_unlock(&mutex);
        return;
    }
    char *start = at, *end = start + bytes;
    if (value || bytes < 16 * EG_PAGE) {
        memset(start, value, bytes);
        return;
    }
    /* zeros: give whole pages back instead of writing them */
    char *first_page = (char *)(((uintptr_t)start + EG_PAGE - 1) & ~(uintptr_t)(EG_PAGE - 1));
    char *last_page = (char *)((uintptr_t)end & ~(uintptr_t)(EG_PAGE - 1));
    memset(start, 0, (size_t)(first_page - start));
    madvise(first_page, (size_t)(last_page - first_page), MADV_DONTNEED);
    memset(last_page, 0, (size_t)(end - last_page));
}
