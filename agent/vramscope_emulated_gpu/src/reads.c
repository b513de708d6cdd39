/* What the program reads back from the device. No value there was computed: whoever watches learns of each
 * read, with the PyTorch operations that caused it, and decides what is read. And what cannot be emulated. */
#define _GNU_SOURCE
#include "emulated_gpu.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <string.h>

#define FRAMES 96
#define ROOM   512
#define PLACES 16384

static uint64_t (*watcher)(size_t bytes, const char *operations, void *to);
static uint64_t cudnn_plans, recurrent_calls, plain_recurrent_calls, sparse_products;
static const char *refused;

EG_API void eg_watch_reads(uint64_t (*function)(size_t bytes, const char *operations, void *to)) {
    watcher = function;
}
EG_API uint64_t eg_cudnn_plans(void) { return __atomic_load_n(&cudnn_plans, __ATOMIC_RELAXED); }
EG_API uint64_t eg_recurrent_calls(void) { return __atomic_load_n(&recurrent_calls, __ATOMIC_RELAXED); }
EG_API uint64_t eg_plain_recurrent_calls(void) { return __atomic_load_n(&plain_recurrent_calls, __ATOMIC_RELAXED); }
EG_API uint64_t eg_sparse_products(void) { return __atomic_load_n(&sparse_products, __ATOMIC_RELAXED); }
EG_API const char *eg_refused(void) { return refused; }
void eg_refuse(const char *what) { refused = what; }
void eg_count_cudnn_plan(void) { __atomic_add_fetch(&cudnn_plans, 1, __ATOMIC_RELAXED); }
void eg_count_recurrent_call(int is_plain) {
    __atomic_add_fetch(&recurrent_calls, 1, __ATOMIC_RELAXED);
    if (is_plain) __atomic_add_fetch(&plain_recurrent_calls, 1, __ATOMIC_RELAXED);
}

void eg_count_sparse_product(void) { __atomic_add_fetch(&sparse_products, 1, __ATOMIC_RELAXED); }

/* The length of the name that begins with its length, as in 7nonzero4call. */
static size_t length_at(const char **at) {
    size_t length = 0;
    for (; **at >= '0' && **at <= '9'; (*at)++) length = length * 10 + (size_t)(**at - '0');
    return strlen(*at) >= length + 5 ? length : 0;
}

/* The name in _ZN2at4_ops7nonzero4callERKNS_6TensorE, the mangled at::_ops::nonzero::call. TorchScript does not call that, but
 * what computes it on the device: at::native::nonzero_cuda. */
static size_t operation_in(const char *symbol, const char **name) {
    static const char called[] = "_ZN2at4_ops", computed[] = "_ZN2at6native";
    if (!symbol) return 0;
    if (!strncmp(symbol, called, sizeof called - 1)) {
        *name = symbol + sizeof called - 1;
        size_t length = length_at(name);
        return length && !strncmp(*name + length, "4call", 5) ? length : 0;
    }
    if (strncmp(symbol, computed, sizeof computed - 1)) return 0;
    *name = symbol + sizeof computed - 1;
    size_t length = length_at(name);
    return length > 5 && !strncmp(*name + length - 5, "_cuda", 5) ? length : 0;
}

/* dladdr searches all symbols of a library: milliseconds in PyTorch's. So each address is looked up once. */
typedef struct {
    void *address;
    const char *name; /* NULL: no operation */
    size_t length;
} place;
static place places[PLACES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

static place look_up(void *address) {
    place *known = &places[((uintptr_t)address >> 2) * 2654435761u % PLACES];
    pthread_mutex_lock(&mutex);
    place found = *known;
    pthread_mutex_unlock(&mutex);
    if (found.address == address) return found;
    Dl_info info;
    found = (place){.address = address};
    if (dladdr(address, &info)) {
        found.length = operation_in(info.dli_sname, &found.name);
        if (!found.length) found.name = NULL;
    }
    pthread_mutex_lock(&mutex);
    *known = found;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* PyTorch's operations on the stack, the outermost first: "index_Tensor nonzero". */
static void operations_on_stack(char *out) {
    void *frames[FRAMES];
    size_t used = 0;
    out[0] = 0;
    for (int i = backtrace(frames, FRAMES) - 1; i >= 0; i--) {
        place found = look_up(frames[i]);
        if (!found.name || used + found.length + 2 > ROOM) continue;
        if (used) out[used++] = ' ';
        memcpy(out + used, found.name, found.length);
        used += found.length;
        out[used] = 0;
    }
}

void eg_read(void *to, size_t bytes) {
    memset(to, 0, bytes);
    if (!watcher) return;
    char operations[ROOM];
    operations_on_stack(operations);
    uint64_t value = watcher(bytes, operations, to);
    if (value) memcpy(to, &value, bytes < sizeof value ? bytes : sizeof value);
}
