/* The emulated GPU: what its libraries share. It keeps the books (memory, streams, events) and computes
 * nothing.
 *
 * All of it lives in libcuda.so.1; libcudart, libnvidia-ml and libnccl link against that library. A "device"
 * here is a physical index, as NVML counts; what CUDA_VISIBLE_DEVICES makes of it is the "visible" index, as
 * CUDA counts. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EG_MAX_DEVICES 16
#define EG_API         __attribute__((visibility("default")))
#define EG_MIB         ((size_t)1 << 20)
#define EG_PAGE        ((size_t)4096)
#define EG_GRANULE     (2 * EG_MIB) /* what the real driver hands out memory in */

/* Another thread may hold a lock while the process forks; the child starts with the lock open. */
#define EG_OPEN_AFTER_FORK(mutex)                                                                            \
    static void open_##mutex(void) {                                                                         \
        static const pthread_mutex_t opened = PTHREAD_MUTEX_INITIALIZER;                                     \
        mutex = opened;                                                                                      \
    }                                                                                                        \
    __attribute__((constructor)) static void watch_forks_for_##mutex(void) {                                 \
        pthread_atfork(NULL, NULL, open_##mutex);                                                            \
    }

#pragma GCC visibility push(default)

/* settings.c: the environment variables EMULATED_GPU_<NAME> */
const char *eg_setting(const char *name);
long eg_setting_number(const char *name, long otherwise);
size_t eg_setting_bytes(const char *name, size_t otherwise); /* 80G, 512M, 79.15GiB, 1048576 */

/* model.c: which GPU it pretends to be */
typedef struct {
    const char *key, *name;
    int capability, multiprocessors;
    size_t total_bytes;      /* as cudaMemGetInfo tells it */
    size_t nvml_total_bytes; /* as NVML tells it: more, by what the driver keeps for itself */
    size_t shared_bytes_per_multiprocessor, l2_bytes;
    int registers_per_multiprocessor, threads_per_multiprocessor;
    int bus_bits, sm_clock_mhz, memory_clock_mhz, power_limit_w;
} eg_model;

const eg_model *eg_gpu(void);
int eg_binary_version(void); /* of its kernels */
int eg_visible_count(void);
int eg_physical_count(void);
int eg_physical(int visible);
int eg_visible(int device);
int eg_pci_bus(int device);
void eg_uuid(int device, unsigned char out[16]);
int eg_attribute(int attribute, int visible); /* CUdevice_attribute and cudaDeviceAttr share their numbers */

/* ledger.c: who holds how much, over all processes */
typedef struct {
    int pid;
    uint64_t used_bytes;
} eg_process;

int eg_charge(int device, size_t bytes); /* 0, or -1 when the device is full */
void eg_uncharge(int device, size_t bytes);
void eg_charge_context(int device); /* once a process and device */
void eg_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
int eg_processes(int device, eg_process *out, int room); /* how many there are; at most room are written */
void eg_launched(int device);
uint64_t eg_last_launch_ns(int device); /* over all live processes; CLOCK_MONOTONIC; 0: never */
uint64_t eg_own_launches(void);         /* of this process, on all devices */
uint64_t eg_now_ns(void);

/* ranges.c: which addresses are whose */
typedef enum { EG_DEVICE, EG_HOST, EG_MANAGED, EG_RESERVED } eg_kind;
static inline int eg_with_host(eg_kind kind) { return kind == EG_HOST || kind == EG_MANAGED; }

typedef struct {
    char *base;
    size_t bytes;
    eg_kind kind;
    int device;
} eg_range;

void eg_add_range(void *base, size_t bytes, eg_kind kind, int device);
int eg_drop_range(void *base);                    /* 0, or -1 when unknown */
int eg_find_range(const void *at, eg_range *out); /* 0, or -1 when unknown */
void *eg_map_pages(size_t bytes, size_t alignment, int writable);

/* memory.c: plain allocations */
void *eg_malloc(int device, size_t bytes); /* charged; NULL when the device is full */
int eg_free(void *at);                     /* 0, or -1 when unknown */
void *eg_host_alloc(size_t bytes, eg_kind kind); /* EG_HOST or EG_MANAGED */
int eg_host_free(void *at, eg_kind kind);

/* copies.c: what becomes of data */
void eg_copy(void *to, const void *from, size_t bytes);
void eg_fill(void *at, int value, size_t bytes);

/* reads.c: values that the program reads back */
void eg_read(void *to, size_t bytes);
void eg_count_cudnn_plan(void);
void eg_count_recurrent_call(int is_plain);
void eg_count_sparse_product(void);
void eg_refuse(const char *what); /* a sentence about what the program asked for in vain */

/* driver.c */
void *eg_driver_function(const char *name);
void eg_find_captures_with(int (*function)(void *stream)); /* libcudart knows which streams are captured */

#pragma GCC visibility pop
