/* Who holds how much: a file that every process of this user maps, so that they share the devices' capacity.
 */
#include "emulated_gpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 256

typedef struct { /* one process; free while pid is 0 */
    int pid;
    uint64_t start_time; /* with the pid it names a process for good: pids come back */
    uint64_t used_bytes[EG_MAX_DEVICES];
    uint64_t last_launch_ns[EG_MAX_DEVICES];
} slot;

#define LEDGER_BYTES (SLOTS * sizeof(slot))

static slot *ledger, *own;
static int ledger_file = -1;
static char has_context[EG_MAX_DEVICES];
static uint64_t launches;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

uint64_t eg_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t start_time_of(int pid) { /* field 22 of /proc/PID/stat; 0: there is no such process */
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *field = strrchr(text, ')'); /* the name before it may hold spaces */
    for (int i = 0; i < 20 && field; i++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

/* A forked child starts with books of its own and an empty slot, as a new process does on a real device. It
 * must not keep the parent's file open either: flock belongs to the open file, and would outlive a parent
 * that is killed. */
static void after_fork_in_child(void) {
    if (ledger_file >= 0) close(ledger_file);
    ledger_file = -1;
    ledger = own = NULL; /* the parent's mapping stays: its few pages are not worth a race */
    memset(has_context, 0, sizeof has_context);
}

static void open_ledger(void) {
    static int watching_forks;
    if (!watching_forks++) pthread_atfork(NULL, NULL, after_fork_in_child);
    char path[256];
    snprintf(path, sizeof path, "/dev/shm/emulated-gpu-%d", (int)getuid());
    if (eg_setting("LEDGER")) snprintf(path, sizeof path, "%s", eg_setting("LEDGER"));
    if (strcmp(path, "private") != 0) {
        ledger_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (ledger_file < 0 || ftruncate(ledger_file, LEDGER_BYTES)) {
            fprintf(stderr, "emulated GPU: the ledger %s cannot be written\n", path);
            abort();
        }
    }
    int sharing = ledger_file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    ledger = mmap(NULL, LEDGER_BYTES, PROT_READ | PROT_WRITE, sharing, ledger_file, 0);
    if (ledger == MAP_FAILED) abort();
}

static void lock(void) {
    pthread_mutex_lock(&mutex);
    if (!ledger) open_ledger();
    if (ledger_file >= 0) flock(ledger_file, LOCK_EX);
}

static void unlock(void) {
    if (ledger_file >= 0) flock(ledger_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

static void reap_the_dead(void) {
    for (slot *s = ledger; s < ledger + SLOTS; s++)
        if (s->pid && s != own && start_time_of(s->pid) != s->start_time) memset(s, 0, sizeof *s);
}

static slot *own_slot(void) {
    if (own) return own;
    reap_the_dead();
    for (slot *s = ledger; s < ledger + SLOTS; s++)
        if (!s->pid) {
            s->pid = getpid();
            s->start_time = start_time_of(s->pid);
            return own = s;
        }
    fprintf(stderr, "emulated GPU: more than %d processes\n", SLOTS);
    abort();
}

static uint64_t used_by_all(int device) {
    uint64_t bytes = 0;
    for (slot *s = ledger; s < ledger + SLOTS; s++) bytes += s->used_bytes[device];
    return bytes;
}

int eg_charge(int device, size_t bytes) {
    lock();
    slot *s = own_slot();
    if (used_by_all(device) + bytes > eg_gpu()->total_bytes) reap_the_dead();
    int fits = used_by_all(device) + bytes <= eg_gpu()->total_bytes;
    if (fits) s->used_bytes[device] += bytes;
    unlock();
    return fits ? 0 : -1;
}

void eg_uncharge(int device, size_t bytes) {
    lock();
    uint64_t *used = &own_slot()->used_bytes[device];
    *used -= bytes < *used ? bytes : *used; /* a forked child may free what its parent was charged for */
    unlock();
}

void eg_charge_context(int device) {
    if (__atomic_exchange_n(&has_context[device], 1, __ATOMIC_RELAXED)) return;
    eg_charge(device, eg_setting_bytes("CONTEXT_MEM", 520 * EG_MIB));
}

void eg_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    lock();
    reap_the_dead();
    uint64_t used = used_by_all(device), total = eg_gpu()->total_bytes;
    unlock();
    if (total_bytes) *total_bytes = total;
    if (free_bytes) *free_bytes = used < total ? total - used : 0;
}

int eg_processes(int device, eg_process *out, int room) {
    int count = 0;
    lock();
    reap_the_dead();
    for (slot *s = ledger; s < ledger + SLOTS; s++) {
        if (!s->pid || !s->used_bytes[device]) continue;
        if (count < room) out[count] = (eg_process){s->pid, s->used_bytes[device]};
        count++;
    }
    unlock();
    return count;
}

void eg_launched(int device) { /* on the path of every kernel: no lock */
    if (!own) {
        lock();
        own_slot();
        unlock();
    }
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    own->last_launch_ns[device] = eg_now_ns();
}

uint64_t eg_own_launches(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED); }

uint64_t eg_last_launch_ns(int device) {
    uint64_t last = 0;
    lock();
    reap_the_dead();
    for (slot *s = ledger; s < ledger + SLOTS; s++)
        if (s->last_launch_ns[device] > last) last = s->last_launch_ns[device];
    unlock();
    return last;
}

__attribute__((destructor)) static void leave(void) {
    if (own && own->pid == getpid()) memset(own, 0, sizeof *own);
}
