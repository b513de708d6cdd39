/* libcudart: devices, errors, and the way to the driver. */
#include "runtime.h"
#include <stdio.h>
#include <string.h>

static __thread int current; /* visible index */
static __thread cudaError_t last_error;

cudaError_t eg_error(cudaError_t code) {
    if (code) last_error = code;
    return code;
}

int eg_current_device(void) {
    int device = eg_physical(current);
    eg_charge_context(device);
    return device;
}

API cudaGetDeviceCount(int *count) {
    *count = eg_visible_count();
    return *count ? cudaSuccess : eg_error(cudaErrorNoDevice);
}
API cudaGetDevice(int *device) {
    *device = current;
    return eg_visible_count() ? cudaSuccess : eg_error(cudaErrorNoDevice);
}
API cudaSetDevice(int device) {
    if (device < 0 || device >= eg_visible_count()) return eg_error(cudaErrorInvalidDevice);
    current = device;
    eg_charge_context(eg_physical(device)); /* since CUDA 12 this makes the context */
    return cudaSuccess;
}
API cudaDeviceSynchronize(void) { return cudaSuccess; }
API cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    *value = eg_attribute((int)attribute, device);
    return cudaSuccess;
}
API cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
API cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }
API cudaDeviceGetPCIBusId(char *id, int room, int device) {
    snprintf(id, (size_t)room, "0000:%02X:00.0", eg_pci_bus(eg_physical(device)));
    return cudaSuccess;
}
API cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
API cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
API cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

API cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (device < 0 || device >= eg_visible_count()) return eg_error(cudaErrorInvalidDevice);
    const eg_model *gpu = eg_gpu();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", gpu->name);
    eg_uuid(eg_physical(device), (unsigned char *)&p->uuid);
    p->major = gpu->capability / 10;
    p->minor = gpu->capability % 10;
    p->totalGlobalMem = gpu->total_bytes;
    p->l2CacheSize = (int)gpu->l2_bytes;
    p->memoryBusWidth = gpu->bus_bits;
    p->pciBusID = eg_pci_bus(eg_physical(device));
    p->multiProcessorCount = gpu->multiprocessors;

    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = gpu->threads_per_multiprocessor;
    p->maxBlocksPerMultiProcessor = 32;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = gpu->registers_per_multiprocessor;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = gpu->shared_bytes_per_multiprocessor - 1024;
    p->sharedMemPerMultiprocessor = gpu->shared_bytes_per_multiprocessor;
    p->reservedSharedMemPerBlock = 1024;
    p->totalConstMem = 65536;
    p->memPitch = 2147483647;
    p->textureAlignment = p->surfaceAlignment = 512;
    p->texturePitchAlignment = 32;

    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->managedMemory = p->concurrentManagedAccess = p->computePreemptionSupported = p->cooperativeLaunch = 1;
    p->hostRegisterSupported = p->memoryPoolsSupported = p->ipcEventSupported = p->unifiedFunctionPointers =
        1;
    p->clusterLaunch = gpu->capability >= 90;
    return cudaSuccess;
}

/* errors */
static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"}, /* stands for all others */
};
static size_t error_index(cudaError_t code) {
    size_t i = 0, last = sizeof errors / sizeof *errors - 1;
    while (i < last && errors[i].code != code) i++;
    return i;
}
EG_API const char *CUDARTAPI cudaGetErrorName(cudaError_t code) { return errors[error_index(code)].name; }
EG_API const char *CUDARTAPI cudaGetErrorString(cudaError_t code) { return errors[error_index(code)].text; }
API cudaPeekAtLastError(void) { return last_error; }
API cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

API cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                     unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    *function = eg_driver_function(name);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *function ? cudaSuccess : eg_error(cudaErrorSymbolNotFound);
}
API cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                            enum cudaDriverEntryPointQueryResult *status) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
