/* libcudnn: descriptors, plans and the workspace that each plan asks for (EMULATED_GPU_CUDNN_WORKSPACE). */
#include "cudnn_workspace.h"
#include "stub.h"

#ifndef CUDNN_VERSION /* build.py passes the version that the wheel pins */
#define CUDNN_VERSION 91900
#endif

/* The convolution whose plan this thread builds: PyTorch asks for the workspace right after it has described it. */
static __thread eg_convolution current;

static size_t workspace_bytes(void) {
    const char *wanted = eg_setting("CUDNN_WORKSPACE");
    if (!wanted || strcmp(wanted, "most")) return eg_setting_bytes("CUDNN_WORKSPACE", 0);
    return current.x.dimensions ? eg_most_workspace_bytes(&current) : 0;
}

static H stream;
CREATE(cudnnCreate)
DESTROY(cudnnDestroy)
API cudnnSetStream(H handle, H s) {
    stream = s;
    return 0;
}
API cudnnGetStream(H handle, H *s) {
    *s = stream;
    return 0;
}
EG_API size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EG_API size_t cudnnGetCudartVersion(void) { return CUDA_MAJOR * 1000; }
API cudnnGetProperty(int part, int *value) {
    *value = part == 0 ? CUDNN_VERSION / 10000 : part == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
    return 0;
}
STRING cudnnGetErrorString(int code) {
    return code ? "not supported by the emulated GPU" : "CUDNN_STATUS_SUCCESS";
}
EG_API void cudnnGetLastErrorString(char *out, size_t room) { snprintf(out, room, "emulated GPU"); }

#define DESCRIPTOR(kind)                                                                                     \
    CREATE(cudnnCreate##kind##Descriptor)                                                                    \
    DESTROY(cudnnDestroy##kind##Descriptor)
DESCRIPTOR(Activation)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(Filter)
DESCRIPTOR(Pooling)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(Tensor)

/* convolution, the older API: one algorithm fits all */
struct performance {
    int algorithm, status;
    float time_ms;
    size_t memory_bytes;
    int deterministic, math_type, reserved[3];
};
static int one_algorithm(int *found, struct performance *out) {
    *found = 1;
    *out = (struct performance){
        .algorithm = 1, .time_ms = 1, .memory_bytes = workspace_bytes(), .deterministic = 1};
    return 0;
}
#define CONVOLUTION(pass)                                                                                    \
    API cudnnGetConvolution##pass##Algorithm_v7(H handle, H a, H b, H c, H d, int wanted, int *found,        \
                                                struct performance *out) {                                   \
        return one_algorithm(found, out);                                                                    \
    }                                                                                                        \
    API cudnnFindConvolution##pass##AlgorithmEx(H handle, H a, H x, H b, H y, H c, H d, H z, int wanted,     \
                                                int *found, struct performance *out, H workspace,            \
                                                size_t n) {                                                  \
        return one_algorithm(found, out);                                                                    \
    }                                                                                                        \
    API cudnnGetConvolution##pass##WorkspaceSize(H handle, H a, H b, H c, H d, int algorithm,                \
                                                 size_t *bytes) {                                            \
        *bytes = workspace_bytes();                                                                          \
        return 0;                                                                                            \
    }
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)

/* batch norm and dropout: sizes only */
API cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(H handle, int mode, int operation, H x, H z, H y,
                                                             H b, H a, size_t *bytes) {
    *bytes = 0;
    return 0;
}
API cudnnGetBatchNormalizationBackwardExWorkspaceSize(H handle, int mode, int operation, H x, H y, H dy, H dz,
                                                      H dx, H b, H a, size_t *bytes) {
    *bytes = 0;
    return 0;
}
API cudnnGetBatchNormalizationTrainingExReserveSpaceSize(H handle, int mode, int operation, H a, H x,
                                                         size_t *bytes) {
    *bytes = 0;
    return 0;
}
API cudnnDropoutGetStatesSize(H handle, size_t *bytes) {
    *bytes = EG_MIB;
    return 0;
}

/* the backend API: every graph has one engine, and its plan the workspace above */
typedef struct {
    eg_shape shape;         /* of a tensor */
    eg_convolution settings; /* strides and dilations of a convolution's descriptor */
} backend_descriptor;

API cudnnBackendCreateDescriptor(int type, H *out) {
    *out = calloc(1, sizeof(backend_descriptor));
    return 0;
}
DESTROY(cudnnBackendDestroyDescriptor)

static int element_bytes(int data_type) {
    enum { FLOAT = 0, DOUBLE = 1, HALF = 2, INT8 = 3, BFLOAT16 = 9 };
    return data_type == DOUBLE ? 8 : data_type == HALF || data_type == BFLOAT16 ? 2 : data_type == INT8 ? 1 : 4;
}

static int copy_sizes(int64_t to[EG_MAX_DIMENSIONS], int64_t count, const void *from) {
    int n = count < EG_MAX_DIMENSIONS ? (int)count : EG_MAX_DIMENSIONS;
    memcpy(to, from, (size_t)n * sizeof *to);
    return n;
}

API cudnnBackendSetAttribute(H descriptor, int name, int type, int64_t count, const void *values) {
    enum { DILATIONS = 102, STRIDES = 103, DATA_TYPE = 901, DIMENSIONS = 902 };
    /* of an operation: the convolution's descriptor, w, x and y; three passes of six attributes each */
    enum { FIRST_PASS = 700, LAST_PASS = 717, SETTINGS = 2, W = 3, X = 4 };
    backend_descriptor *own = descriptor;
    if (!own || !values || count <= 0) return 0;
    if (name == DIMENSIONS) own->shape.dimensions = copy_sizes(own->shape.size, count, values);
    if (name == DATA_TYPE) own->shape.element_bytes = element_bytes(*(const int *)values);
    if (name == STRIDES) own->settings.spatial = copy_sizes(own->settings.stride, count, values);
    if (name == DILATIONS) copy_sizes(own->settings.dilation, count, values);
    if (name < FIRST_PASS || name > LAST_PASS) return 0;
    static const eg_pass passes[] = {EG_FORWARD, EG_BACKWARD_DATA, EG_BACKWARD_FILTER};
    int part = (name - FIRST_PASS) % 6;
    current.pass = passes[(name - FIRST_PASS) / 6];
    if (part < SETTINGS) return 0;
    const backend_descriptor *other = *(backend_descriptor *const *)values;
    if (part == SETTINGS) {
        current.spatial = other->settings.spatial;
        memcpy(current.stride, other->settings.stride, sizeof current.stride);
        memcpy(current.dilation, other->settings.dilation, sizeof current.dilation);
    } else {
        *(part == W ? &current.w : part == X ? &current.x : &current.y) = other->shape;
    }
    return 0;
}

API cudnnBackendGetAttribute(H descriptor, int name, int type, int64_t wanted, int64_t *found, void *out) {
    enum { HEURISTIC_RESULTS = 202, CONFIGURATION_ENGINE = 300, PLAN_WORKSPACE = 402 };
    enum { INT64 = 3, INT32 = 23 };
    int one = name == HEURISTIC_RESULTS || name == CONFIGURATION_ENGINE || type == INT64 || type == INT32;
    if (found) *found = one;
    if (!out || wanted <= 0) return 0;
    if (type == INT32) *(int32_t *)out = 0; /* shared memory used */
    if (type == INT64) *(int64_t *)out = name == PLAN_WORKSPACE ? (int64_t)workspace_bytes() : 0;
    return 0;
}

API cudnnBackendExecute(H handle, H plan, H pack) {
    eg_count_cudnn_plan();
    return 0;
}
