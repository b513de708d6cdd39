/* The workspace that a convolution may ask for, by its shape. cuDNN documents its algorithms and not their bytes:
 * what is here follows from what an algorithm must store.
 *
 *   implicit GEMM         none, or copies of its three tensors in another layout, with channels of whole 16 bytes;
 *                         and where a long sum is split between multiprocessors, their partial results, which were
 *                         in registers before
 *   Winograd, non-fused   the three tensors, transformed in tiles of (4 + filter - 1) squared
 *
 * Explicit GEMM and FFT need more, and are left out. */
#include "cudnn_workspace.h"
#include "emulated_gpu.h"
#include <string.h>

#define ACCUMULATOR_BYTES 4
#define ALIGNMENT         16
#define WAVES             2 /* of all multiprocessors, that leave partial results */
#define WINOGRAD_OUTPUTS  4 /* of a tile, in each direction */

static size_t elements(const eg_shape *shape) {
    size_t product = 1;
    for (int i = 0; i < shape->dimensions; i++) product *= (size_t)shape->size[i];
    return product;
}

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

static size_t copy_bytes(const eg_shape *shape) {
    if (shape->dimensions < 2) return 0;
    size_t bytes = (size_t)shape->element_bytes, unit = ALIGNMENT / bytes, channels = (size_t)shape->size[1];
    return channels ? elements(shape) / channels * ceil_div(channels, unit) * unit * bytes : 0;
}

static size_t copies_bytes(const eg_convolution *c) {
    return copy_bytes(&c->x) + copy_bytes(&c->w) + copy_bytes(&c->y);
}

static size_t partial_results_bytes(const eg_convolution *c) {
    const eg_shape *result = c->pass == EG_FORWARD ? &c->y : c->pass == EG_BACKWARD_DATA ? &c->x : &c->w;
    size_t one = elements(result) * ACCUMULATOR_BYTES;
    size_t registers = (size_t)eg_gpu()->registers_per_multiprocessor * (size_t)eg_gpu()->multiprocessors;
    size_t most = WAVES * registers * ACCUMULATOR_BYTES;
    return one && one < most ? ceil_div(most, one) * one : 0;
}

static int suits_winograd(const eg_convolution *c) {
    if (c->x.dimensions != 4 || c->w.size[2] != c->w.size[3] || (c->w.size[2] != 3 && c->w.size[2] != 5)) return 0;
    for (int i = 0; i < c->spatial; i++)
        if (c->stride[i] != 1 || c->dilation[i] != 1) return 0;
    return 1;
}

static size_t winograd_bytes(const eg_convolution *c) {
    if (!suits_winograd(c)) return 0;
    size_t filter = (size_t)c->w.size[2], tile = WINOGRAD_OUTPUTS + filter - 1;
    const eg_shape *y = &c->y;
    size_t tiles = ceil_div((size_t)y->size[2], WINOGRAD_OUTPUTS) * ceil_div((size_t)y->size[3], WINOGRAD_OUTPUTS);
    size_t images = (size_t)c->x.size[0] * (size_t)(c->x.size[1] + y->size[1]) * tiles;
    return tile * tile * ACCUMULATOR_BYTES * (images + elements(&c->w) / (filter * filter));
}

size_t eg_most_workspace_bytes(const eg_convolution *c) {
    size_t partial = partial_results_bytes(c), winograd = winograd_bytes(c);
    return copies_bytes(c) + (partial > winograd ? partial : winograd);
}
