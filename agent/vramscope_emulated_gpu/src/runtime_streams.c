/* libcudart: streams, events, and the capture of CUDA graphs. Nothing waits, but for EMULATED_GPU_ASYNC_US.
 */
#include "runtime.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long capture_id; /* 0: not captured */

typedef struct stream {
    struct stream *next;
    int priority;
    capture_id capture;
} stream;

typedef struct {
    uint64_t recorded_ns;
    capture_id capture;
} event;

typedef struct {
    size_t nodes;
} graph;

static stream *streams, default_stream;
static capture_id captures;
static size_t captured_kernels;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
EG_OPEN_AFTER_FORK(mutex)

/* The handles 0, 1 and 2 all mean a default stream. */
static stream *stream_of(cudaStream_t handle) {
    return (uintptr_t)handle < 16 ? &default_stream : (stream *)handle;
}
static event *event_of(cudaEvent_t handle) { return (event *)handle; }

int eg_captured(cudaStream_t handle) { return stream_of(handle)->capture != 0; }
static int stream_is_captured(void *handle) { return eg_captured(handle); }
__attribute__((constructor)) static void tell_driver(void) { eg_find_captures_with(stream_is_captured); }
void eg_count_captured_kernel(void) { __atomic_add_fetch(&captured_kernels, 1, __ATOMIC_RELAXED); }

/* streams */
API cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority) {
    eg_current_device();
    stream *s = calloc(1, sizeof *s);
    s->priority = priority;
    pthread_mutex_lock(&mutex);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&mutex);
    *handle = (cudaStream_t)s;
    return cudaSuccess;
}
API cudaStreamCreate(cudaStream_t *handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
API cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned f) {
    return cudaStreamCreateWithPriority(handle, f, 0);
}
API cudaStreamDestroy(cudaStream_t handle) {
    pthread_mutex_lock(&mutex);
    stream **link = &streams;
    while (*link && *link != (stream *)handle) link = &(*link)->next;
    if (*link) {
        *link = ((stream *)handle)->next;
        free(handle);
    }
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}
API cudaStreamGetPriority(cudaStream_t s, int *priority) {
    *priority = stream_of(s)->priority;
    return cudaSuccess;
}
API cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
API cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
API cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    if (event_of(e)->capture)
        stream_of(s)->capture = event_of(e)->capture; /* the capture spreads over streams */
    return cudaSuccess;
}
API cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t callback, void *user, unsigned flags) {
    callback(s, cudaSuccess, user);
    return cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *user) {
    if (!eg_captured(s)) function(user);
    return cudaSuccess;
}

/* events: each is done EMULATED_GPU_ASYNC_US after it was recorded */
static uint64_t delay_ns(void) {
    static long us = -1;
    if (us < 0) us = eg_setting_number("ASYNC_US", 0);
    return (uint64_t)us * 1000;
}
API cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = (cudaEvent_t)calloc(1, sizeof(event));
    return cudaSuccess;
}
API cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
API cudaEventDestroy(cudaEvent_t e) {
    free(e);
    return cudaSuccess;
}
API cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    *event_of(e) = (event){eg_now_ns(), stream_of(s)->capture};
    return cudaSuccess;
}
API cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) { return cudaEventRecord(e, s); }
API cudaEventQuery(cudaEvent_t e) {
    int pending = delay_ns() && eg_now_ns() < event_of(e)->recorded_ns + delay_ns();
    return pending ? eg_error(cudaErrorNotReady) : cudaSuccess;
}
API cudaEventSynchronize(cudaEvent_t e) {
    uint64_t done = event_of(e)->recorded_ns + delay_ns(), now = eg_now_ns();
    if (!delay_ns() || now >= done) return cudaSuccess;
    struct timespec rest = {(time_t)((done - now) / 1000000000), (long)((done - now) % 1000000000)};
    nanosleep(&rest, NULL);
    return cudaSuccess;
}
API cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)(((double)event_of(to)->recorded_ns - (double)event_of(from)->recorded_ns) / 1e6);
    return cudaSuccess;
}

/* CUDA graphs: PyTorch only needs to know whether it captures, and how many nodes came of it */
API cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    stream_of(s)->capture = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
    captured_kernels = 0;
    return cudaSuccess;
}
API cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
    capture_id capture = stream_of(handle)->capture;
    if (!capture) return eg_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&mutex);
    for (stream *s = streams; s; s = s->next)
        if (s->capture == capture) s->capture = 0;
    default_stream.capture = 0;
    pthread_mutex_unlock(&mutex);
    graph *g = malloc(sizeof *g);
    g->nodes = captured_kernels;
    *out = (cudaGraph_t)g;
    return cudaSuccess;
}
API cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    *status = eg_captured(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *g, const cudaGraphNode_t **dependencies, size_t *count) {
    cudaStreamIsCapturing(s, status);
    if (id) *id = stream_of(s)->capture;
    if (g) *g = NULL;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                             cudaGraph_t *g, const cudaGraphNode_t **dependencies,
                             const cudaGraphEdgeData **edges, size_t *count) {
    if (edges) *edges = NULL;
    return capture_info(s, status, id, g, dependencies, count);
}
#else
API cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                             cudaGraph_t *g, const cudaGraphNode_t **dependencies, size_t *count) {
    return capture_info(s, status, id, g, dependencies, count);
}
#endif
API cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode held;
    enum cudaStreamCaptureMode before = held;
    held = *mode;
    *mode = before;
    return cudaSuccess;
}
API cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t g, unsigned long long flags) {
    graph *copy = malloc(sizeof *copy);
    *copy = *(graph *)g;
    *executable = (cudaGraphExec_t)copy;
    return cudaSuccess;
}
API cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t s) {
    eg_launched(eg_current_device());
    return cudaSuccess;
}
API cudaGraphDestroy(cudaGraph_t g) {
    free(g);
    return cudaSuccess;
}
API cudaGraphExecDestroy(cudaGraphExec_t executable) {
    free(executable);
    return cudaSuccess;
}
API cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *count) {
    if (!nodes)
        *count = ((graph *)g)->nodes;
    else
        for (size_t i = 0; i < *count; i++) nodes[i] = NULL;
    return cudaSuccess;
}
API cudaGraphDebugDotPrint(cudaGraph_t g, const char *path, unsigned flags) { return cudaSuccess; }
