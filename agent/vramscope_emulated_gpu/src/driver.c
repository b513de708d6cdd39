/* libcuda.so.1: the part of the driver API that PyTorch and triton reach for. Virtual memory has a file of
 * its own. */
#define _GNU_SOURCE
#include "emulated_gpu.h"
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define API EG_API CUresult CUDAAPI
#define OK  CUDA_SUCCESS

/* A context is its device's number, put where a pointer would be. */
#define CONTEXT(visible) ((CUcontext)(uintptr_t)(0x1000 + (visible)))
#define VISIBLE(context) ((int)((uintptr_t)(context) - 0x1000))
static __thread int current; /* visible device, where only the driver API is used */

/* devices */
API cuInit(unsigned flags) { return eg_visible_count() ? OK : CUDA_ERROR_NO_DEVICE; }
API cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return OK;
}
API cuDeviceGetCount(int *count) {
    *count = eg_visible_count();
    return OK;
}
API cuDeviceGet(CUdevice *device, int i) {
    if (i < 0 || i >= eg_visible_count()) return CUDA_ERROR_INVALID_DEVICE;
    *device = i;
    return OK;
}
API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice d) {
    *value = eg_attribute(attribute, d);
    return OK;
}
API cuDeviceGetName(char *name, int room, CUdevice d) {
    snprintf(name, (size_t)room, "%s", eg_gpu()->name);
    return OK;
}
API cuDeviceTotalMem(size_t *bytes, CUdevice d) {
    *bytes = eg_gpu()->total_bytes;
    return OK;
}
API cuDeviceGetUuid(CUuuid *uuid, CUdevice d) {
    eg_uuid(eg_physical(d), (unsigned char *)uuid);
    return OK;
}
API cuDeviceGetPCIBusId(char *id, int room, CUdevice d) {
    snprintf(id, (size_t)room, "0000:%02X:00.0", eg_pci_bus(eg_physical(d)));
    return OK;
}

/* contexts */
API cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    if (active) *active = 1;
    return OK;
}
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) {
    eg_charge_context(eg_physical(d));
    *context = CONTEXT(d);
    return OK;
}
API cuDevicePrimaryCtxRelease(CUdevice d) { return OK; }
API cuCtxGetCurrent(CUcontext *context) {
    *context = CONTEXT(current);
    return OK;
}
API cuCtxSetCurrent(CUcontext context) {
    if (context) current = VISIBLE(context);
    return OK;
}
API cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
API cuCtxPopCurrent(CUcontext *context) { return cuCtxGetCurrent(context); }
API cuCtxGetDevice(CUdevice *device) {
    *device = current;
    return OK;
}
API cuCtxSynchronize(void) { return OK; }
API cuCtxGetLimit(size_t *value, CUlimit limit) {
    *value = 1024;
    return OK;
}
API cuCtxSetLimit(CUlimit limit, size_t value) { return OK; }

/* errors */
static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "emulated GPU: driver error"}, /* stands for all others */
};
static size_t error_index(CUresult code) {
    size_t i = 0, last = sizeof errors / sizeof *errors - 1;
    while (i < last && errors[i].code != code) i++;
    return i;
}
API cuGetErrorName(CUresult code, const char **name) {
    *name = errors[error_index(code)].name;
    return OK;
}
API cuGetErrorString(CUresult code, const char **text) {
    *text = errors[error_index(code)].text;
    return OK;
}

/* plain memory */
API cuMemGetInfo(size_t *free_bytes, size_t *total) {
    eg_memory_info(eg_physical(current), free_bytes, total);
    return OK;
}
API cuMemAlloc(CUdeviceptr *at, size_t bytes) {
    *at = (CUdeviceptr)eg_malloc(eg_physical(current), bytes);
    return *at ? OK : CUDA_ERROR_OUT_OF_MEMORY;
}
API cuMemFree(CUdeviceptr at) { return !at || !eg_free((void *)at) ? OK : CUDA_ERROR_INVALID_VALUE; }
API cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    eg_range range;
    if (eg_find_range((void *)at, &range)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = (CUdeviceptr)range.base;
    if (bytes) *bytes = range.bytes;
    return OK;
}
API cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
    if (!value)
        eg_fill((void *)at, 0, 4 * count);
    else
        for (size_t i = 0; i < count; i++) eg_copy((unsigned *)at + i, &value, 4);
    return OK;
}
API cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    eg_copy((void *)at, &value, 4);
    return OK;
}
/* The capture of CUDA graphs is libcudart's, which a program of Triton alone does not load. */
static int (*is_captured)(void *stream);
void eg_find_captures_with(int (*function)(void *stream)) { is_captured = function; }
API cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    int active = is_captured && is_captured(stream);
    *status = active ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return OK;
}
API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr at) {
    eg_range range;
    if (eg_find_range((void *)at, &range)) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = CONTEXT(eg_visible(range.device)); return OK;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = eg_with_host(range.kind) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return OK;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr *)out = at; return OK;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = eg_visible(range.device); return OK;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = (CUdeviceptr)range.base; return OK;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = range.bytes; return OK;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = (uintptr_t)range.base >> 9; return OK;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr at) {
    for (unsigned i = 0; i < count; i++) cuPointerGetAttribute(out[i], attributes[i], at);
    return OK;
}

/* modules and launches: nothing runs */
API cuModuleLoad(CUmodule *module, const char *file) {
    *module = (CUmodule)1;
    return OK;
}
API cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)1;
    return OK;
}
API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options,
                       void **values) {
    *module = (CUmodule)1;
    return OK;
}
API cuModuleUnload(CUmodule module) { return OK; }
API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)1;
    return OK;
}
API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                  : 0;
    return OK;
}
API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return OK; }
API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return OK; }
API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared_bytes, CUstream stream, void **arguments, void **extra) {
    eg_launched(eg_physical(current));
    return OK;
}
API cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                              void **arguments) {
    eg_launched(eg_physical(current));
    return OK;
}
API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    eg_launched(eg_physical(current));
    return OK;
}
API cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
    *count = eg_gpu()->multiprocessors;
    return OK;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int block,
                                                size_t shared_bytes) {
    *count = block > 0 && block <= 2048 ? 2048 / block : 1;
    return OK;
}
API cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                           const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                           CUtensorMapFloatOOBfill fill) {
    memset(map, 0, sizeof *map);
    return OK;
}

/* A function by its plain name, which cuda.h maps to _v2 or _v3 for some. */
void *eg_driver_function(const char *name) {
    static void *self;
    Dl_info here;
    if (!self && dladdr((void *)eg_driver_function, &here))
        self = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int version = 3; version >= 2; version--) {
        char versioned[128];
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        void *function = dlsym(self, versioned);
        if (function) return function;
    }
    return dlsym(self, name);
}
API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    *function = eg_driver_function(name);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? OK : CUDA_ERROR_NOT_FOUND;
}
