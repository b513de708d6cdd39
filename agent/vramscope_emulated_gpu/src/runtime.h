/* What the files of libcudart share. */
#pragma once
#include "emulated_gpu.h"
#include <cuda_runtime_api.h>

#define API EG_API cudaError_t CUDARTAPI

cudaError_t eg_error(cudaError_t code); /* kept for cudaGetLastError; handed through */
int eg_current_device(void);            /* of this thread, as a physical index; its context is charged */
int eg_captured(cudaStream_t stream);   /* whether a CUDA graph records what goes to the stream */
void eg_count_captured_kernel(void);
