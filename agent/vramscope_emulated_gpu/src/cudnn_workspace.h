/* A convolution as cuDNN is asked for it, and the workspace that it may need. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EG_MAX_DIMENSIONS 8

typedef struct {
    int dimensions; /* batch, channels and the spatial ones; 0: unknown */
    int64_t size[EG_MAX_DIMENSIONS];
    int element_bytes;
} eg_shape;

typedef enum { EG_FORWARD, EG_BACKWARD_DATA, EG_BACKWARD_FILTER } eg_pass;

typedef struct {
    eg_pass pass;
    eg_shape x, w, y; /* or their gradients */
    int spatial;
    int64_t stride[EG_MAX_DIMENSIONS], dilation[EG_MAX_DIMENSIONS];
} eg_convolution;

size_t eg_most_workspace_bytes(const eg_convolution *convolution);
