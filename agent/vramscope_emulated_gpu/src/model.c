/* Which GPU it pretends to be, how many there are, and which of them CUDA_VISIBLE_DEVICES shows. */
#include "emulated_gpu.h"
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const eg_model models[] = {
    {.key = "h100", .name = "NVIDIA H100 80GB HBM3", .capability = 90, .multiprocessors = 132,
     .total_bytes = 81079 * EG_MIB, .nvml_total_bytes = 81559 * EG_MIB,
     .shared_bytes_per_multiprocessor = 228 << 10, .l2_bytes = 50 * EG_MIB,
     .registers_per_multiprocessor = 65536, .threads_per_multiprocessor = 2048,
     .bus_bits = 5120, .sm_clock_mhz = 1980, .memory_clock_mhz = 2619, .power_limit_w = 700},
    {.key = "h200", .name = "NVIDIA H200", .capability = 90, .multiprocessors = 132,
     .total_bytes = 143167 * EG_MIB, .nvml_total_bytes = 143771 * EG_MIB,
     .shared_bytes_per_multiprocessor = 228 << 10, .l2_bytes = 60 * EG_MIB,
     .registers_per_multiprocessor = 65536, .threads_per_multiprocessor = 2048,
     .bus_bits = 6144, .sm_clock_mhz = 1980, .memory_clock_mhz = 3201, .power_limit_w = 700},
    {.key = "a100", .name = "NVIDIA A100-SXM4-80GB", .capability = 80, .multiprocessors = 108,
     .total_bytes = 81050 * EG_MIB, .nvml_total_bytes = 81920 * EG_MIB,
     .shared_bytes_per_multiprocessor = 164 << 10, .l2_bytes = 40 * EG_MIB,
     .registers_per_multiprocessor = 65536, .threads_per_multiprocessor = 2048,
     .bus_bits = 5120, .sm_clock_mhz = 1410, .memory_clock_mhz = 1593, .power_limit_w = 400},
    {.key = "t4", .name = "Tesla T4", .capability = 75, .multiprocessors = 40,
     .total_bytes = 15095 * EG_MIB, .nvml_total_bytes = 15360 * EG_MIB,
     .shared_bytes_per_multiprocessor = 64 << 10, .l2_bytes = 4 * EG_MIB,
     .registers_per_multiprocessor = 65536, .threads_per_multiprocessor = 1024,
     .bus_bits = 256, .sm_clock_mhz = 1590, .memory_clock_mhz = 5001, .power_limit_w = 70},
};
/* clang-format on */

static eg_model model;
static int physical_count, visible_count, physical_of[EG_MAX_DEVICES];

static void read_visible_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (; visible_count < physical_count; visible_count++) physical_of[visible_count] = visible_count;
        return;
    }
    while (*text) { /* as the driver does: stop at the first bad entry */
        char *end;
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= physical_count || visible_count == EG_MAX_DEVICES) break;
        physical_of[visible_count++] = (int)device;
        if (*end != ',') break;
        text = end + 1;
    }
}

/* Another card than those above: what a capability implies, by the table of NVIDIA's programming guide. */
static void set_capability(int capability) {
    static const struct {
        int capability, threads;
        size_t shared_kib;
    } known[] = {{70, 2048, 96},  {75, 1024, 64},  {80, 2048, 164},  {86, 1536, 100},
                 {89, 1536, 100}, {90, 2048, 228}, {100, 2048, 228}, {120, 1536, 100}};
    model.capability = capability;
    model.nvml_total_bytes = model.total_bytes;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].capability <= capability) {
            model.threads_per_multiprocessor = known[i].threads;
            model.shared_bytes_per_multiprocessor = known[i].shared_kib << 10;
        }
}

/* The newest architecture that PyTorch is compiled for and that runs on this card: CUB chooses by it. */
int eg_binary_version(void) {
    static const int compiled[] = {50, 60, 70, 75, 80, 86, 90, 100, 120};
    int version = 0;
    for (size_t i = 0; i < sizeof compiled / sizeof *compiled; i++)
        if (compiled[i] <= eg_gpu()->capability) version = compiled[i];
    return version;
}

static void read_settings(void) {
    const char *key = eg_setting("MODEL");
    model = models[0];
    for (size_t i = 0; key && i < sizeof models / sizeof *models; i++)
        if (!strcmp(key, models[i].key)) model = models[i];
    if (eg_setting("CAPABILITY")) set_capability((int)eg_setting_number("CAPABILITY", 0));
    model.multiprocessors = (int)eg_setting_number("MULTIPROCESSORS", model.multiprocessors);
    size_t kept_by_driver = model.nvml_total_bytes - model.total_bytes;
    model.total_bytes = eg_setting_bytes("TOTAL_MEM", model.total_bytes);
    model.nvml_total_bytes = model.total_bytes + kept_by_driver;
    if (eg_setting("NAME")) model.name = strdup(eg_setting("NAME"));
    long count = eg_setting_number("DEVICES", 1);
    physical_count = count < 0 ? 0 : count > EG_MAX_DEVICES ? EG_MAX_DEVICES : (int)count;
    read_visible_devices();
}

static void once(void) {
    static pthread_once_t control = PTHREAD_ONCE_INIT;
    pthread_once(&control, read_settings);
}

const eg_model *eg_gpu(void) {
    once();
    return &model;
}

int eg_visible_count(void) {
    once();
    return visible_count;
}

int eg_physical_count(void) {
    once();
    return physical_count;
}

int eg_physical(int visible) {
    once();
    return visible >= 0 && visible < visible_count ? physical_of[visible] : 0;
}

int eg_visible(int device) {
    once();
    for (int i = 0; i < visible_count; i++)
        if (physical_of[i] == device) return i;
    return 0;
}

int eg_pci_bus(int device) { return 0x10 + device; }

void eg_uuid(int device, unsigned char out[16]) {
    memcpy(out, "emulated-gpu-00", 15);
    out[15] = (unsigned char)('0' + device);
}

int eg_attribute(int attribute, int visible) {
    const eg_model *gpu = eg_gpu();
    switch ((CUdevice_attribute)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return gpu->capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return gpu->capability % 10;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return gpu->multiprocessors;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return eg_pci_bus(eg_physical(visible));
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return gpu->sm_clock_mhz * 1000; /* kHz */
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return gpu->memory_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return gpu->bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)gpu->l2_bytes;

    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return gpu->threads_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return gpu->capability >= 90 ? 32 : 16;

    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return (int)gpu->shared_bytes_per_multiprocessor - 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return (int)gpu->shared_bytes_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return gpu->registers_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;

    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return gpu->capability >= 90;
    default: return 0; /* among them fabric handles and multicast: none */
    }
}
