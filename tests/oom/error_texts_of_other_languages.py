# ruff: noqa: E501 - a text as it is pasted
"""Texts of other languages, frameworks and services, with the right answer of each, written down before any was tried.

Programs and numbers are made up. A seed draws the half of which only the score was read.
"""

from __future__ import annotations

import json
import random
from typing import Final

from error_texts import GIB, MIB, TRACEBACK, ErrorText, modern, old

PIECES: Final = modern(
    "2.25 GiB", "79.18 GiB", "801.25 MiB", "60.04 GiB", "17.02 GiB", gpu=6,
    more="Including non-PyTorch memory, this process has 78.39 GiB memory in use. ",
)  # fmt: skip
FULL: Final = modern("768.00 MiB", "23.64 GiB", "310.56 MiB", "22.40 GiB", "402.11 MiB", gpu=1)
FRAMES: Final = (
    "\nException raised from malloc at ../c10/cuda/CUDACachingAllocator.cpp:1219 (most recent call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f1a2b in /opt/libtorch/lib/libc10.so)\n"
    "frame #1: <unknown function> + 0x3aef2 (0x7f1a9d in /opt/libtorch/lib/libc10_cuda.so)\n"
)

OTHER_LANGUAGES: Final = (
    # -- PyTorch's allocator
    ErrorText(
        "program in C++",
        "loaded 311 weights\nterminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  "
        + PIECES.partition(": ")[2]
        + FRAMES
        + "Aborted (core dumped)\n",
        "pytorch",
        "fragmentation",
        2.25 * GIB,
        6,
        says=("expandable_segments:True",),
        never=("host",),
    ),
    ErrorText(
        "panic of a program in Rust",
        "thread 'main' panicked at src/train.rs:81:38:\ncalled `Result::unwrap()` on an `Err` value: Torch("
        + json.dumps(FULL.partition(": ")[2] + FRAMES)
        + ")\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
        "pytorch",
        "",
        768 * MIB,
        1,
        never=("fragmented", "host"),
    ),
    ErrorText(
        "torch in R",
        "Epoch 3: loss 0.812\nError in (function (self, weight, bias, stride, padding, dilation, groups)  : \n  CUDA out of memory. Tried to allocate 44.00 MiB (GPU 0; 7.79 GiB total capacity; 6.41 GiB already allocated; 21.94 MiB free; 6.60 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\nException raised from malloc at /pytorch/c10/cuda/CUDACachingAllocator.cpp:578 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x42\nCalls: fit -> fit.luz_module_generator -> <Anonymous>\nExecution halted\n",
        "pytorch",
        "",
        44 * MIB,
        0,
        never=("expandable",),
    ),
    ErrorText(
        "jobs of Hydra",
        "[2025-03-02 08:00:11,221][HYDRA] Launching 4 jobs locally\n[2025-03-02 08:00:11,221][HYDRA] \t#0 : model=large batch=64\nError executing job with overrides: ['model=large', 'batch=64']\n"
        + TRACEBACK
        + PIECES
        + "\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        "pytorch",
        "fragmentation",
        2.25 * GIB,
        6,
    ),
    ErrorText(
        "answer of a server in JSON",
        'HTTP/1.1 500 Internal Server Error\ncontent-type: application/json\n\n{"error":"'
        + FULL.partition(": ")[2]
        + '","error_type":"internal","warnings":["There was an inference error"]}\n',
        "pytorch",
        "",
        768 * MIB,
        1,
        never=("fragmented",),
    ),
    ErrorText(
        "prefix of a pod and its time on each line",
        "".join(
            f"[pod/train-worker-2/pytorch] 2025-05-05T10:11:12.0000{n:05}Z {line}\n"
            for n, line in enumerate((TRACEBACK + PIECES).replace(" Including", "\nIncluding").split("\n"))
        ),
        "pytorch",
        "fragmentation",
        2.25 * GIB,
        6,
    ),
    ErrorText(
        "report of the environment below, torch 2.0.1",
        TRACEBACK
        + old("1.50 GiB", "23.69 GiB", "15.02 GiB", "301.00 MiB", "22.40 GiB").replace(
            "RuntimeError", "torch.cuda.OutOfMemoryError"
        )
        + "\n\nVersions\nCollecting environment information...\nPyTorch version: 2.0.1+cu118\nIs debug build: False\nCUDA used to build PyTorch: 11.8\nOS: Ubuntu 22.04.2 LTS (x86_64)\nGPU models and configuration: GPU 0: NVIDIA GeForce RTX 3090\n[pip3] numpy==1.24.1\n[pip3] torch==2.0.1+cu118\n",
        "pytorch",
        "fragmentation",
        1.5 * GIB,
        0,
        says=("max_split_size_mb",),
        never=("expandable_segments",),
    ),
    ErrorText(
        "fairseq retries, and its scale becomes too small",
        "2021-04-01 10:00:01 | WARNING | fairseq.trainer | OOM: Ran out of memory with exception: CUDA out of memory. Tried to allocate 1.10 GiB (GPU 0; 15.78 GiB total capacity; 12.11 GiB already allocated; 640.75 MiB free; 13.90 GiB reserved in total by PyTorch)\n2021-04-01 10:00:01 | WARNING | fairseq.trainer | attempting to recover from OOM in forward/backward pass\n"
        + "2021-04-01 10:02:01 | INFO | train_inner | epoch 001: loss=11.2, ppl=2351, wps=9112, num_updates=100\n" * 300
        + 'Traceback (most recent call last):\n  File "fairseq/optim/fp16_optimizer.py", line 190, in clip_grad_norm\n    self.scaler.check_overflow(grad_norm)\nFloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.\n',
        "pytorch|unknown",
        "fragmentation|",
        says=("FloatingPointError",),
    ),
    ErrorText(
        "allocator of Moore Threads",
        TRACEBACK
        + PIECES.replace("CUDA out", "MUSA out").replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_MUSA_ALLOC_CONF"),
        "pytorch",
        "fragmentation",
        2.25 * GIB,
        6,
        never=("PYTORCH_CUDA",),
    ),
    # -- other software on a GPU
    ErrorText(
        "tiny-cuda-nn",
        TRACEBACK
        + "RuntimeError: /tmp/pip-req-build-x1/include/tiny-cuda-nn/gpu_memory.h:584 cuMemCreate(&m_handles.back(), n_bytes_to_allocate, &prop, 0) failed: CUDA_ERROR_OUT_OF_MEMORY\nCould not free memory: /tmp/pip-req-build-x1/include/tiny-cuda-nn/gpu_memory.h:464 cuMemAddressFree(m_base_address, m_max_size) failed: invalid argument\n",
        "cuda",
        "outside_pytorch|",
        never=("fragmented",),
    ),
    ErrorText(
        "arrays of Numba",
        TRACEBACK
        + "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n",
        "cuda",
        "outside_pytorch|",
        never=("fragmented",),
    ),
    ErrorText(
        "arrays of Julia",
        "ERROR: LoadError: Out of GPU memory trying to allocate 4.000 GiB\nEffective GPU memory usage: 99.21% (23.500 GiB/23.688 GiB)\nMemory pool usage: 21.000 GiB (22.000 GiB reserved)\nStacktrace:\n [1] macro expansion\n   @ ~/.julia/packages/CUDA/src/pool.jl:443 [inlined]\n",
        "unknown|cuda|julia",
        "outside_pytorch|",
        never=("PyTorch's caching allocator", "PyTorch ran out", "PYTORCH_"),
    ),
    ErrorText(
        "buffer that MLX refuses",
        TRACEBACK
        + "RuntimeError: [metal::malloc] Attempting to allocate 34359738368 bytes which is greater than the maximum allowed buffer size of 22613000192 bytes.\n",
        "unknown|mlx",
        "",
        never=("PyTorch", "PYTORCH_MPS"),
    ),
    ErrorText(
        "command buffer of MLX",
        "Generating: 12 tokens\nlibc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\nzsh: abort      python -m mlx_lm.generate --model mlx-community/Llama-3.3-70B-Instruct-4bit\n",
        "unknown|mlx|mps",
        "limit|",
        never=("PyTorch could not", "which PyTorch uses", "PYTORCH_MPS"),
    ),
    ErrorText(
        "pool of MXNet",
        TRACEBACK
        + "mxnet.base.MXNetError: [09:12:02] src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory\nStack trace:\n  [bt] (0) /usr/lib/libmxnet.so(+0x6d1) [0x7f]\n",
        "cuda|unknown",
        "outside_pytorch|",
        never=("caching allocator could not", "fragmented"),
    ),
    # -- memory of the host and of a virtual machine
    ErrorText(
        "heap of Java before a distributed training",
        "25/02/11 10:00:01 ERROR Executor: Exception in task 3.0 in stage 12.0 (TID 411)\njava.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)\n\tat org.apache.spark.sql.execution.SparkPlan.executeCollect(SparkPlan.scala:392)\n",
        "unknown|host|java",
        "outside_pytorch|",
        never=("PyTorch", "GPU memory"),
    ),
    ErrorText(
        "matrix of OpenCV",
        TRACEBACK
        + "cv2.error: OpenCV(4.8.0) /io/opencv/modules/core/src/alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 24883200000 bytes in function 'OutOfMemoryError'\n",
        "host|unknown",
        "outside_pytorch|",
        never=("PyTorch ran out", "PYTORCH_"),
    ),
    ErrorText(
        "status of a pod as JSON",
        json.dumps(
            {
                "status": {
                    "phase": "Running",
                    "containerStatuses": [
                        {
                            "name": "trainer",
                            "restartCount": 3,
                            "lastState": {
                                "terminated": {
                                    "exitCode": 137,
                                    "finishedAt": "2025-06-01T10:00:00Z",
                                    "reason": "OOMKilled",
                                    "startedAt": "2025-06-01T09:00:00Z",
                                }
                            },
                        }
                    ],
                }
            },
            indent=2,
        ),
        "kubernetes",
        "outside_pytorch",
        says=("host",),
        never=("fragmented",),
    ),
    ErrorText(
        "notebook of Databricks",
        "Fatal error: The Python kernel is unresponsive.\n---------------------------------------------------------------------------\nThe Python process exited with exit code 137 (SIGKILL: Killed). This may have been caused by an OOM error. Check your command's memory usage.\n\nThe last 10 KB of the process's stderr and stdout can be found below. See driver logs for full logs.\n",
        "killed|host|kernel",
        "outside_pytorch|",
        says=("host",),
        certain=False,
        never=("fragmented",),
    ),
    # -- no lack of memory
    ErrorText(
        "bus of a card",
        "[88123.1] NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        + TRACEBACK
        + "RuntimeError: CUDA error: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        "unknown",
        "",
    ),
    ErrorText(
        "table of a summary, full but finished",
        "wandb: Run summary:\nwandb:   system/gpu.0.memoryAllocated 98.7\nwandb:              train/oom_retries 0\nwandb:              train/train_loss 1.22\nTraining completed. Do not forget to share your model on huggingface.co/models =)\n",
        "unknown",
        "",
    ),
    ErrorText(
        "assertion about memory formats",
        TRACEBACK
        + "RuntimeError: required rank 4 tensor to use channels_last format\n\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK
        + "SystemExit: training failed, out of ideas, memory format is wrong\n",
        "unknown",
        "",
    ),
)
UNSEEN_OTHER_LANGUAGES: Final = frozenset(random.Random(30112026).sample([one.name for one in OTHER_LANGUAGES], 11))
"""Names of the texts of which only the score was read."""
