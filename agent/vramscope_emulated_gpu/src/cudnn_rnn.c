/* libcudnn, recurrent networks: the layout of the weights, and the sizes of workspace and reserve space.
 *
 * NVIDIA documents that both spaces exist, not how large they are. The reserve space is kept for the backward pass. The
 * formulas fit all four sizes that cuDNN returned for one LSTM and one GRU of 4 layers on a P100
 * (github.com/pytorch/pytorch/issues/2895). With them the peak of another LSTM was 0.8 % below that of an H100. No size of a
 * plain network is known: its formula is that of an LSTM with one gate. */
#include "stub.h"

enum { FLOAT = 0, DOUBLE = 1, HALF = 2, BFLOAT16 = 9 };
enum { LSTM = 2, GRU = 3 };

typedef struct {
    int mode, bias, directions, type, input, hidden, layers, has_dropout;
} network;
typedef struct {
    int length, rows;
} sequence;
typedef struct {
    int type, count, dims[8];
} shape;

static size_t bytes_of(int type) { return type == DOUBLE ? 8 : type == HALF || type == BFLOAT16 ? 2 : 4; }
static int gates_of(const network *n) { return n->mode == LSTM ? 4 : n->mode == GRU ? 3 : 1; }
static int inputs_of(const network *n, int layer) { return layer ? n->hidden * n->directions : n->input; }

API cudnnSetTensorNdDescriptor(shape *s, int type, int count, const int *dims, const int *strides) {
    s->type = type;
    s->count = count < 8 ? count : 8;
    memcpy(s->dims, dims, (size_t)s->count * sizeof *dims);
    return 0;
}
API cudnnGetTensorNdDescriptor(const shape *s, int wanted, int *type, int *count, int *dims, int *strides) {
    *type = s->type;
    *count = s->count;
    int stride = 1;
    for (int i = s->count - 1; i >= 0; i--) {
        if (i < wanted) dims[i] = s->dims[i], strides[i] = stride;
        stride *= s->dims[i];
    }
    return 0;
}
API cudnnSetDropoutDescriptor(float *descriptor, H handle, float probability, H states, size_t bytes, uint64_t seed) {
    *descriptor = probability;
    return 0;
}
API cudnnRestoreDropoutDescriptor(float *descriptor, H handle, float probability, H states, size_t bytes,
                                  uint64_t seed) {
    *descriptor = probability;
    return 0;
}
API cudnnSetRNNDescriptor_v8(network *n, int algorithm, int mode, int bias, int direction, int input_mode, int type,
                             int precision, int math, int input, int hidden, int projection, int layers,
                             const float *dropout,
                             unsigned flags) {
    if (projection != hidden) {
        eg_refuse("nn.LSTM with a projection cannot be emulated through cuDNN; "
                  "it runs with torch.backends.cudnn.enabled = False");
        return 3000; /* not supported */
    }
    *n = (network){mode, bias != 0, direction ? 2 : 1, type, input, hidden, layers, dropout && *dropout > 0};
    return 0;
}
API cudnnSetRNNDataDescriptor(sequence *s, int type, int layout, int length, int rows, int width, const int *lengths,
                              void *padding) {
    *s = (sequence){length, rows};
    return 0;
}

/* Weights: the matrices of all layers, of each layer those of the input before the recurrent ones; then all biases. */
static size_t matrices_before(const network *n, int pseudo) {
    size_t elements = 0;
    for (int p = 0; p < pseudo; p++) {
        size_t inputs = (size_t)inputs_of(n, p / n->directions);
        elements += (size_t)gates_of(n) * (size_t)n->hidden * (inputs + (size_t)n->hidden);
    }
    return elements;
}
static size_t weights(const network *n) {
    size_t pseudo = (size_t)(n->layers * n->directions);
    size_t biases = n->bias ? 2 * pseudo * (size_t)gates_of(n) * (size_t)n->hidden : 0;
    return matrices_before(n, (int)pseudo) + biases;
}
API cudnnGetRNNWeightSpaceSize(H handle, const network *n, size_t *bytes) {
    *bytes = weights(n) * bytes_of(n->type);
    return 0;
}
API cudnnGetRNNWeightParams(H handle, const network *n, int pseudo, size_t room, const char *space, int linear,
                            shape *matrix, const char **matrix_at, shape *bias, const char **bias_at) {
    size_t gates = (size_t)gates_of(n), hidden = (size_t)n->hidden;
    size_t inputs = (size_t)inputs_of(n, pseudo / n->directions);
    size_t gate = (size_t)linear % gates, recurrent = (size_t)linear >= gates;
    size_t width = recurrent ? hidden : inputs;
    size_t element = matrices_before(n, pseudo) + (recurrent ? gates * hidden * inputs : 0) + gate * hidden * width;
    if (matrix) *matrix = (shape){n->type, 3, {1, n->hidden, (int)width}};
    if (matrix_at) *matrix_at = space + element * bytes_of(n->type);
    element = matrices_before(n, n->layers * n->directions) + ((size_t)pseudo * 2 * gates + (size_t)linear) * hidden;
    if (bias) *bias = (shape){n->type, 3, {1, n->hidden, 1}};
    if (bias_at) *bias_at = n->bias ? space + element * bytes_of(n->type) : NULL;
    return 0;
}

API cudnnGetRNNTempSpaceSizes(H handle, const network *n, int training, const sequence *x, size_t *work,
                              size_t *reserve) {
    size_t layers = (size_t)n->layers, directions = (size_t)n->directions, gates = (size_t)gates_of(n);
    size_t states = (size_t)x->length * (size_t)x->rows * (size_t)n->hidden * directions;
    size_t kept = n->mode == GRU ? 6 : gates + 1;
    size_t now = directions * (size_t)x->rows * (size_t)n->hidden;
    size_t matrices = matrices_before(n, n->layers * n->directions);
    size_t saved = training ? (kept * layers + layers - 1) * states * bytes_of(n->type) : 0;
    if (training && n->has_dropout) saved += (layers - 1) * states; /* a byte for each element of the mask */
    if (reserve) *reserve = saved;
    if (work) *work = (gates * (matrices / gates + 3 * layers * now) - layers * now) * bytes_of(n->type);
    return 0;
}

#define EXECUTE(function)                                                                                    \
    API function(H handle, const network *n) {                                                               \
        eg_count_recurrent_call(n->mode != LSTM && n->mode != GRU);                                          \
        return 0;                                                                                            \
    }
EXECUTE(cudnnRNNForward)
EXECUTE(cudnnRNNBackwardData_v8)
EXECUTE(cudnnRNNBackwardWeights_v8)
