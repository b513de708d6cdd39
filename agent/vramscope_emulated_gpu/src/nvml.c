/* libnvidia-ml.so.1: the same books, as nvidia-smi and pynvml see them. Structures as in NVML's ABI. */
#include "emulated_gpu.h"
#include <stdio.h>
#include <string.h>

#define API EG_API int
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

typedef struct nvml_device *handle; /* a physical index, plus 1 */
static int device_of(handle h) { return (int)(uintptr_t)h - 1; }
static handle handle_of(int device) { return (handle)(uintptr_t)(device + 1); }

typedef struct {
    char legacy_id[16];
    unsigned domain, bus, device, pci_device_id, subsystem_id;
    char id[32];
} pci_info;

typedef struct {
    unsigned long long total, free, used;
} memory_info;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_info_v2;
typedef struct {
    unsigned pid;
    unsigned long long used;
} process_v1;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_v2;
typedef struct {
    unsigned gpu, memory;
} utilization;
typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
} process_sample;

/* the library and the system */
API nvmlInit(void) { return OK; }
API nvmlInit_v2(void) { return OK; }
API nvmlInitWithFlags(unsigned flags) { return OK; }
API nvmlShutdown(void) { return OK; }
EG_API const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    default: return "Invalid Argument";
    }
}
API nvmlSystemGetDriverVersion(char *out, unsigned room) {
    snprintf(out, room, "580.65.06");
    return OK;
}
API nvmlSystemGetNVMLVersion(char *out, unsigned room) {
    snprintf(out, room, "13.580.65.06");
    return OK;
}
API nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return OK;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return OK;
}
API nvmlSystemGetProcessName(unsigned pid, char *out, unsigned room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file) return NOT_FOUND;
    out[fread(out, 1, room - 1, file)] = 0;
    fclose(file);
    return OK;
}

/* devices */
API nvmlDeviceGetCount(unsigned *count) {
    *count = (unsigned)eg_physical_count();
    return OK;
}
API nvmlDeviceGetCount_v2(unsigned *count) { return nvmlDeviceGetCount(count); }
API nvmlDeviceGetHandleByIndex(unsigned index, handle *h) {
    if ((int)index >= eg_physical_count()) return INVALID;
    *h = handle_of((int)index);
    return OK;
}
API nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *h) { return nvmlDeviceGetHandleByIndex(index, h); }
API nvmlDeviceGetUUID(handle h, char *out, unsigned room) {
    unsigned char u[16];
    eg_uuid(device_of(h), u);
    snprintf(out, room, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return OK;
}
API nvmlDeviceGetHandleByUUID(const char *uuid, handle *h) {
    for (int device = 0; device < eg_physical_count(); device++) {
        char own[64];
        *h = handle_of(device);
        nvmlDeviceGetUUID(*h, own, sizeof own);
        if (!strcmp(own, uuid)) return OK;
    }
    return NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle *h) {
    unsigned domain, bus, slot;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID;
    for (int device = 0; device < eg_physical_count(); device++) {
        *h = handle_of(device);
        if (eg_pci_bus(device) == (int)bus) return OK;
    }
    return NOT_FOUND;
}
API nvmlDeviceGetPciInfo_v3(handle h, pci_info *p) {
    memset(p, 0, sizeof *p);
    p->bus = (unsigned)eg_pci_bus(device_of(h));
    p->pci_device_id = 0x233010de;
    snprintf(p->legacy_id, sizeof p->legacy_id, "0000:%02X:00.0", p->bus);
    snprintf(p->id, sizeof p->id, "00000000:%02X:00.0", p->bus);
    return OK;
}
API nvmlDeviceGetName(handle h, char *out, unsigned room) {
    snprintf(out, room, "%s", eg_gpu()->name);
    return OK;
}
API nvmlDeviceGetIndex(handle h, unsigned *index) {
    *index = (unsigned)device_of(h);
    return OK;
}
API nvmlDeviceGetMinorNumber(handle h, unsigned *index) { return nvmlDeviceGetIndex(h, index); }
API nvmlDeviceGetSerial(handle h, char *out, unsigned room) {
    snprintf(out, room, "%010d", 1 + device_of(h));
    return OK;
}
API nvmlDeviceGetBrand(handle h, int *brand) {
    *brand = 14;
    return OK;
}
API nvmlDeviceGetArchitecture(handle h, unsigned *architecture) {
    enum { TURING = 6, AMPERE = 7, HOPPER = 9 };
    int capability = eg_gpu()->capability;
    *architecture = capability >= 90 ? HOPPER : capability >= 80 ? AMPERE : TURING;
    return OK;
}
API nvmlDeviceGetCudaComputeCapability(handle h, int *major, int *minor) {
    *major = eg_gpu()->capability / 10;
    *minor = eg_gpu()->capability % 10;
    return OK;
}

/* memory and who holds it */
API nvmlDeviceGetMemoryInfo(handle h, memory_info *m) {
    size_t free_bytes, total;
    eg_memory_info(device_of(h), &free_bytes, &total);
    m->total = eg_gpu()->nvml_total_bytes;
    m->free = free_bytes;
    m->used = m->total - free_bytes; /* this version counts as used what the driver keeps for itself */
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(handle h, memory_info_v2 *m) {
    size_t free_bytes, total;
    eg_memory_info(device_of(h), &free_bytes, &total);
    m->total = eg_gpu()->nvml_total_bytes;
    m->reserved = m->total - total;
    m->free = free_bytes;
    m->used = total - free_bytes;
    return OK;
}
API nvmlDeviceGetBAR1MemoryInfo(handle h, memory_info *m) {
    *m = (memory_info){.total = 128ull << 30, .used = EG_MIB, .free = (128ull << 30) - EG_MIB};
    return OK;
}
static int list_processes(handle h, unsigned *count, void *out, int version) {
    eg_process processes[256];
    int found = eg_processes(device_of(h), processes, 256);
    int fits = found <= (int)*count && (out || !found);
    *count = (unsigned)found;
    if (!fits) return TOO_SMALL;
    for (int i = 0; i < found; i++) {
        eg_process p = processes[i];
        if (version == 1)
            ((process_v1 *)out)[i] = (process_v1){(unsigned)p.pid, p.used_bytes};
        else
            ((process_v2 *)out)[i] = (process_v2){(unsigned)p.pid, p.used_bytes, ~0u, ~0u};
    }
    return OK;
}
API nvmlDeviceGetComputeRunningProcesses(handle h, unsigned *n, void *out) {
    return list_processes(h, n, out, 1);
}
API nvmlDeviceGetComputeRunningProcesses_v2(handle h, unsigned *n, void *out) {
    return list_processes(h, n, out, 2);
}
API nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *n, void *out) {
    return list_processes(h, n, out, 3);
}
API nvmlDeviceGetGraphicsRunningProcesses_v3(handle h, unsigned *n, void *out) {
    *n = 0;
    return OK;
}
API nvmlDeviceGetMPSComputeRunningProcesses_v3(handle h, unsigned *n, void *out) {
    *n = 0;
    return OK;
}

/* Readings: EMULATED_GPU_UTIL, _MEM_UTIL, _TEMP and _POWER_W fix them; else they tell busy from idle. */
static int busy(handle h) { /* a kernel within the last second */
    uint64_t last = eg_last_launch_ns(device_of(h));
    return last && eg_now_ns() - last < 1000000000;
}
static unsigned reading(const char *setting, int otherwise) {
    return (unsigned)eg_setting_number(setting, otherwise);
}
static unsigned gpu_percent(handle h) { return reading("UTIL", busy(h) ? 97 : 0); }
static unsigned memory_percent(handle h) { return reading("MEM_UTIL", busy(h) ? 42 : 0); }

API nvmlDeviceGetUtilizationRates(handle h, utilization *u) {
    *u = (utilization){gpu_percent(h), memory_percent(h)};
    return OK;
}
API nvmlDeviceGetProcessUtilization(handle h, process_sample *out, unsigned *count,
                                    unsigned long long since_us) {
    eg_process processes[256];
    int found = eg_processes(device_of(h), processes, 256);
    int fits = out && found <= (int)*count;
    *count = (unsigned)found;
    if (!fits) return TOO_SMALL;
    for (int i = 0; i < found; i++)
        out[i] = (process_sample){
            (unsigned)processes[i].pid, eg_now_ns() / 1000, gpu_percent(h), memory_percent(h), 0, 0};
    return OK;
}
API nvmlDeviceGetTemperature(handle h, int sensor, unsigned *celsius) {
    *celsius = reading("TEMP", busy(h) ? 62 : 34);
    return OK;
}
API nvmlDeviceGetTemperatureV(handle h, unsigned *versioned) {
    return nvmlDeviceGetTemperature(h, 0, versioned + 2);
}
API nvmlDeviceGetTemperatureThreshold(handle h, int kind, unsigned *celsius) {
    *celsius = kind ? 87 : 92;
    return OK;
}
API nvmlDeviceGetPowerUsage(handle h, unsigned *mw) {
    *mw = 1000 * reading("POWER_W", eg_gpu()->power_limit_w * (busy(h) ? 85 : 10) / 100);
    return OK;
}
API nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *mw) {
    *mw = 1000 * (unsigned)eg_gpu()->power_limit_w;
    return OK;
}
API nvmlDeviceGetPowerManagementLimit(handle h, unsigned *mw) {
    return nvmlDeviceGetEnforcedPowerLimit(h, mw);
}
API nvmlDeviceGetPowerManagementDefaultLimit(handle h, unsigned *mw) {
    return nvmlDeviceGetEnforcedPowerLimit(h, mw);
}
API nvmlDeviceGetTotalEnergyConsumption(
    handle h, unsigned long long *mj) { /* since the host's start, at a tenth of the limit */
    *mj = eg_now_ns() / 1000000 * (unsigned)eg_gpu()->power_limit_w / 10;
    return OK;
}
enum { MEMORY_CLOCK = 2 };
API nvmlDeviceGetMaxClockInfo(handle h, int kind, unsigned *mhz) {
    *mhz = (unsigned)(kind == MEMORY_CLOCK ? eg_gpu()->memory_clock_mhz : eg_gpu()->sm_clock_mhz);
    return OK;
}
API nvmlDeviceGetClockInfo(handle h, int kind, unsigned *mhz) {
    nvmlDeviceGetMaxClockInfo(h, kind, mhz);
    if (kind != MEMORY_CLOCK && !busy(h)) *mhz = 345;
    return OK;
}
API nvmlDeviceGetPerformanceState(handle h, int *state) {
    *state = busy(h) ? 0 : 8;
    return OK;
}
API nvmlDeviceGetCurrentClocksEventReasons(handle h, unsigned long long *mask) {
    *mask = busy(h) ? 0 : 1;
    return OK;
}
API nvmlDeviceGetCurrentClocksThrottleReasons(handle h, unsigned long long *mask) {
    return nvmlDeviceGetCurrentClocksEventReasons(h, mask);
}
API nvmlDeviceGetPcieThroughput(handle h, int counter, unsigned *kb) {
    *kb = busy(h) ? 120000 : 0;
    return OK;
}
API nvmlDeviceGetFanSpeed(handle h, unsigned *percent) { return NOT_SUPPORTED; } /* such cards have no fan */

/* modes and links */
API nvmlDeviceGetPersistenceMode(handle h, int *mode) {
    *mode = 1;
    return OK;
}
API nvmlDeviceGetComputeMode(handle h, int *mode) {
    *mode = 0;
    return OK;
}
API nvmlDeviceGetEccMode(handle h, int *now, int *pending) {
    *now = *pending = 1;
    return OK;
}
API nvmlDeviceGetTotalEccErrors(handle h, int type, int counter, unsigned long long *count) {
    *count = 0;
    return OK;
}
API nvmlDeviceGetMigMode(handle h, unsigned *now, unsigned *pending) {
    *now = *pending = 0;
    return OK;
}
API nvmlDeviceGetMaxMigDeviceCount(handle h, unsigned *count) {
    *count = 0;
    return OK;
}
API nvmlDeviceGetP2PStatus(handle h, handle peer, int index, int *status) {
    *status = 0;
    return OK;
}
API nvmlDeviceGetNvLinkRemoteDeviceType(handle h, unsigned link, int *type) { return NOT_SUPPORTED; }
API nvmlDeviceGetNvLinkRemotePciInfo_v2(handle h, unsigned link, pci_info *p) { return NOT_SUPPORTED; }
API nvmlDeviceGetGpuFabricInfoV(handle h, void *versioned) {
    memset((char *)versioned + 4, 0, 25); /* state 0: no fabric */
    return OK;
}
