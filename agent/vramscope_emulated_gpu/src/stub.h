/* For the libraries whose headers we do without: prototypes reduced to their ABI, every handle a void *. */
#pragma once
#include "emulated_gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API    EG_API int
#define STRING EG_API const char *

typedef void *H;

/* A handle is a block of zeros; 256 bytes are enough for every structure of which PyTorch reads a part. */
#define CREATE(function)                                                                                     \
    API function(H *out) {                                                                                   \
        *out = calloc(1, 256);                                                                               \
        return 0;                                                                                            \
    }
#define DESTROY(function)                                                                                    \
    API function(H handle) {                                                                                 \
        free(handle);                                                                                        \
        return 0;                                                                                            \
    }
